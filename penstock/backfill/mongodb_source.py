"""A collection of MongoDB, read for a backfill."""

from __future__ import annotations

import math
import re
from collections.abc import Collection as NameCollection
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import bson
import orjson
import pyarrow as pa
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, PyMongoError

from penstock.archive import parquet
from penstock.archive.layout import Span, merge_spans
from penstock.backfill.job import epoch_ms
from penstock.backfill.retry import OnWait, retry_while_away
from penstock.backfill.skipped_records import SkippedRecords
from penstock.backfill.source import OnFile, write_file
from penstock.errors import SinkError, Wait
from penstock.model.backfill import Collection
from penstock.sinks.core import connections

# Documents of one file.
DOCUMENTS_PER_FILE = 50_000
SERVER_SELECTION_MS = 10_000
JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
# Years that Python has not come as numbers; text that is no UTF-8 is an error, or is replaced to read the id.
DECODE_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
DECODE_ID_OPTIONS: CodecOptions[dict[str, Any]] = DECODE_OPTIONS.with_options(unicode_decode_error_handler="replace")
RAW_OPTIONS: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
INTEGER_TEXT, MAX_INTEGER = re.compile(r"[+-]?[0-9]{1,19}(\.0{1,20})?"), 2**63
# What the last bytes of a double are that is no number.
NOT_FINITE_BYTES = re.compile(rb"[\xf0-\xff][\x7f\xff]")


class MongoDBSource:
    """A collection's documents in order of their ids, as records: key the id as text, value the document as JSON.

    integers: fields of the documents that are to be whole numbers. left_out: documents that cannot be written as JSON.
    """

    def __init__(self, collection: Collection, integers: NameCollection[str], waits: OnWait) -> None:
        self._collection, self._integers, self._waits = collection, integers, waits
        self.left_out = SkippedRecords()
        self.files = self.rows = 0
        self.spans: Mapping[str, Span] = {}
        self.ids: Mapping[str, str] = {}
        self.nothing = f"nothing is in {collection.path}"

    def fetch(self, folder: Path, told: OnFile) -> list[Path]:
        if not (url := connections.url("mongodb")):
            raise SinkError(
                "nobody has said where MongoDB is",
                got=self._collection.path,
                hint='set PENSTOCK_MONGODB_URL, or start one here: make up STORES="mongodb"',
            )
        found = retry_while_away(partial(self._read, url, folder, told), self._waits)
        self.files, self.rows = len(found), sum(span.rows for span in self.spans.values())
        return found

    def _read(self, url: str, folder: Path, told: OnFile) -> list[Path]:
        """All of it. Nothing says what a document was when it was read before, so each try reads all anew."""
        place = self._collection.path
        found, self.spans, self.left_out = list[Path](), {}, SkippedRecords()
        try:
            made: MongoClient[dict[str, Any]] = MongoClient(url, serverSelectionTimeoutMS=SERVER_SELECTION_MS)
            with closing(made) as client:
                database = client[self._collection.database]
                if self._collection.name not in database.list_collection_names():
                    raise SinkError(
                        "there is no such collection in MongoDB", got=place,
                        hint="see how the Collection is written, and where PENSTOCK_MONGODB_URL leads to",
                    )  # fmt: skip
                self.rows = database[self._collection.name].estimated_document_count()
                for number, rows in enumerate(self._tables(client)):
                    path = folder / f"{number:06}.parquet"
                    write_file(path, rows)
                    self.spans = merge_spans([self.spans, parquet.spans_of(rows)])
                    found.append(path)
                    told(rows.num_rows)
        except ConnectionFailure as e:
            raise Wait(f"MongoDB does not answer for {place}", got=str(e)[:300], seconds=1.0) from e
        except PyMongoError as e:
            raise SinkError(
                f"MongoDB does not give {place}",
                got=str(e)[:300],
                hint="see that the user may read the collection; then run it again",
            ) from e
        return found

    def _tables(self, client: MongoClient[dict[str, Any]]) -> Iterator[pa.Table]:
        collection: Any = client[self._collection.database].get_collection(self._collection.name, RAW_OPTIONS)
        at, held = 0, list[tuple[bytes, bytes]]()
        document: RawBSONDocument
        for document in collection.find().sort("_id", 1):
            try:
                held.append(to_record(bytes(document.raw), self._integers))
            except (BSONError, TypeError, ValueError, RecursionError) as e:
                self.left_out.add(f"document {_id_text(bytes(document.raw))}", f"{type(e).__name__}: {e}")
                continue
            if len(held) == DOCUMENTS_PER_FILE:
                yield self._table(held, at)
                at, held = at + len(held), []
        if held:
            yield self._table(held, at)

    def _table(self, documents: list[tuple[bytes, bytes]], at: int) -> pa.Table:
        count = len(documents)
        given: dict[str, Any] = {
            "topic": pa.repeat(self._collection.path, count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(range(at, at + count)),
            "key": pa.array([key for key, _ in documents]),
            "value": pa.array([value for _, value in documents]),
        }
        columns = [
            given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type)
            for field in parquet.SCHEMA
        ]
        return pa.Table.from_arrays(columns, schema=parquet.SCHEMA)


def to_record(document: bytes, integers: NameCollection[str]) -> tuple[bytes, bytes]:
    """The id of a BSON document as text, and the document as JSON, with nothing changed that JSON can say.

    Dates are epoch ms, ids and decimals text, bytes hexadecimal; of `integers` a double, a decimal or a text that is a
    whole number is one. Types that JSON has nothing for are objects, as MongoDB's Extended JSON has them. An error of
    bson, TypeError or ValueError if it cannot be read or written.
    """
    found = bson.decode(document, DECODE_OPTIONS)
    for name in integers:
        if isinstance(found.get(name), float | str | bson.Decimal128):
            found[name] = _to_integer(found[name])
    if NOT_FINITE_BYTES.search(document):
        found = _non_finite_as_text(found)
    return str(found.get("_id")).encode(), orjson.dumps(found, default=_to_json_type, option=JSON_OPTIONS)


def _to_integer(value: float | str | bson.Decimal128) -> object:
    """The whole number that a value is; the value if it is none."""
    number: Decimal | None = None
    if isinstance(value, str):
        number = Decimal(value) if INTEGER_TEXT.fullmatch(value) else None
    else:
        number = value.to_decimal() if isinstance(value, bson.Decimal128) else Decimal(value)
    if number is None or not number.is_finite() or abs(number) > MAX_INTEGER or number != number.to_integral_value():
        return value
    return int(number)


def _non_finite_as_text(value: Any) -> Any:
    """A value with its numbers that are none as text, as `to_json` of Spark has them: JSON would make them null."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _non_finite_as_text(one) for name, one in value.items()}
    return [_non_finite_as_text(one) for one in value] if isinstance(value, list) else value


def _id_text(document: bytes) -> str:
    """The id of a document, for people."""
    try:
        return str(bson.decode(document, DECODE_ID_OPTIONS).get("_id"))[:100]
    except BSONError:
        return f"of {len(document)} bytes that are no BSON"


def _to_json_type(value: object) -> object:
    if isinstance(value, datetime):
        return epoch_ms(value)
    if isinstance(value, DatetimeMS):
        return int(value)
    if isinstance(value, Decimal | bson.Decimal128 | bson.ObjectId):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    return json_util.default(value)
