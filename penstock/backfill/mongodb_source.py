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

from penstock.archive import records
from penstock.archive.state import Span, merge_spans
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
    """A collection's documents in order of their ids, as records: the key is the id as text, the value JSON.

    Args:
        collection: The collection.
        integers: Fields of the documents whose values become whole numbers.
        waits: Called with the reason before each wait.

    Attributes:
        skipped_records: Documents that cannot be written as JSON.
    """

    def __init__(self, collection: Collection, integers: NameCollection[str], waits: OnWait) -> None:
        self._collection, self._integers, self._waits = collection, integers, waits
        self.skipped_records = SkippedRecords()
        self.files = self.rows = 0
        self.spans: Mapping[str, Span] = {}
        self.ids: Mapping[str, str] = {}
        self.empty_text = f"nothing is in {collection.path}"

    def fetch(self, folder: Path, on_file: OnFile) -> list[Path]:
        if not (url := connections.url("mongodb")):
            raise SinkError(
                "no MongoDB is configured",
                got=self._collection.path,
                hint='set PENSTOCK_MONGODB_URL, or start a server on this machine with `make up STORES="mongodb"`',
            )
        paths = retry_while_away(partial(self._read, url, folder, on_file), self._waits)
        self.files, self.rows = len(paths), sum(span.rows for span in self.spans.values())
        return paths

    def _read(self, url: str, folder: Path, on_file: OnFile) -> list[Path]:
        """Read the whole collection: each attempt starts again, since documents may have changed."""
        path_of_collection = self._collection.path
        paths, self.spans, self.skipped_records = list[Path](), {}, SkippedRecords()
        try:
            mongo_client: MongoClient[dict[str, Any]] = MongoClient(url, serverSelectionTimeoutMS=SERVER_SELECTION_MS)
            with closing(mongo_client) as client:
                database = client[self._collection.database]
                if self._collection.name not in database.list_collection_names():
                    raise SinkError(
                        "the collection does not exist in MongoDB", got=path_of_collection,
                        hint="check the name of the Collection, and PENSTOCK_MONGODB_URL",
                    )  # fmt: skip
                self.rows = database[self._collection.name].estimated_document_count()
                for number, rows in enumerate(self._tables(client)):
                    path = folder / f"{number:06}.parquet"
                    write_file(path, rows)
                    self.spans = merge_spans([self.spans, records.spans_of(rows)])
                    paths.append(path)
                    on_file(rows.num_rows)
        except ConnectionFailure as e:
            raise Wait(f"MongoDB does not answer for {path_of_collection}", got=str(e)[:300], seconds=1.0) from e
        except PyMongoError as e:
            raise SinkError(
                f"MongoDB refused to read {path_of_collection}",
                got=str(e)[:300],
                hint="allow the user to read the collection, then run it again",
            ) from e
        return paths

    def _tables(self, client: MongoClient[dict[str, Any]]) -> Iterator[pa.Table]:
        collection: Any = client[self._collection.database].get_collection(self._collection.name, RAW_OPTIONS)
        offset, batch = 0, list[tuple[bytes, bytes]]()
        document: RawBSONDocument
        for document in collection.find().sort("_id", 1):
            try:
                batch.append(to_record(bytes(document.raw), self._integers))
            except (BSONError, TypeError, ValueError, RecursionError) as e:
                self.skipped_records.add(f"document {_id_text(bytes(document.raw))}", f"{type(e).__name__}: {e}")
                continue
            if len(batch) == DOCUMENTS_PER_FILE:
                yield self._table(batch, offset)
                offset, batch = offset + len(batch), []
        if batch:
            yield self._table(batch, offset)

    def _table(self, documents: list[tuple[bytes, bytes]], offset: int) -> pa.Table:
        count = len(documents)
        columns_by_name: dict[str, Any] = {
            "topic": pa.repeat(self._collection.path, count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(range(offset, offset + count)),
            "key": pa.array([key for key, _ in documents]),
            "value": pa.array([value for _, value in documents]),
        }
        columns = [
            columns_by_name[field.name].cast(field.type)
            if field.name in columns_by_name
            else pa.nulls(count, field.type)
            for field in records.SCHEMA
        ]
        return pa.Table.from_arrays(columns, schema=records.SCHEMA)


def to_record(document: bytes, integers: NameCollection[str]) -> tuple[bytes, bytes]:
    """The id of a BSON document as text, and the document as JSON, with nothing changed that JSON can say.

    Dates are epoch ms, ids and decimals text, bytes hexadecimal; of `integers` a double, a decimal or a text that is a
    whole number is one. Types that JSON has nothing for are objects, as MongoDB's Extended JSON has them. An error of
    bson, TypeError or ValueError if it cannot be read or written.
    """
    fields = bson.decode(document, DECODE_OPTIONS)
    for name in integers:
        if isinstance(fields.get(name), float | str | bson.Decimal128):
            fields[name] = _to_integer(fields[name])
    if NOT_FINITE_BYTES.search(document):
        fields = _non_finite_as_text(fields)
    return str(fields.get("_id")).encode(), orjson.dumps(fields, default=_to_json_type, option=JSON_OPTIONS)


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
        return {name: _non_finite_as_text(item) for name, item in value.items()}
    return [_non_finite_as_text(item) for item in value] if isinstance(value, list) else value


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
