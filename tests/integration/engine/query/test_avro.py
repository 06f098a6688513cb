"""Avro that Java and Python wrote is read with equal values, natively by Spark and by the decoder without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec.avro import MAGIC, VALID, AvroDecoder, AvroValues
from penstock.engine.query.decode import decode_records
from penstock.engine.query.native_avro import decoded_avro
from penstock.model.avro import Avro
from penstock.registry import client
from penstock.streams import Input, Topic
from tests.support.avro_cases import AT, CASES, A, AvroCase, field, python_bytes, schema_text

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.integration

SOURCE = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def java_bytes(spark: SparkSession, case: AvroCase) -> bytes:
    """The record as Java's Avro writes it, without the header."""
    jvm: Any = spark._jvm
    avro = "org.apache.avro"

    def new(name: str, *arguments: Any) -> Any:
        return getattr(jvm, f"{avro}.{name}")(*arguments)

    schema = new("Schema$Parser").parse(schema_text(case.writer))
    factory = getattr(jvm, f"{avro}.io.DecoderFactory").get()
    value = new("generic.GenericDatumReader", schema).read(None, factory.jsonDecoder(schema, case.written))
    stream = getattr(jvm, "java.io.ByteArrayOutputStream")()
    encoder = getattr(jvm, f"{avro}.io.EncoderFactory").get().binaryEncoder(stream, None)
    new("generic.GenericDatumWriter", schema).write(value, encoder)
    encoder.flush()
    return bytes(stream.toByteArray())


def test_all_writers_and_readers_agree(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = {number: schema_text(case.writer) for number, case in enumerate(CASES.values())}
    monkeypatch.setattr(client, "schema_text", schemas.__getitem__)
    records, columns = {}, []
    wrong: dict[str, Any] = {}
    for number, (name, case) in enumerate(CASES.items()):
        written = python_bytes(case)
        assert written == java_bytes(spark, case), name
        records[f"v{number}"] = MAGIC + number.to_bytes(4) + written
        schema = Avro(schema_text(case.reader))
        rows, errors = AvroDecoder(AvroValues(schema)).decode(pa.array([records[f"v{number}"]]))
        if (errors.to_pylist(), [plain(rows[0].as_py())]) != ([None], [case.read]):
            wrong[name] = errors.to_pylist(), rows.to_pylist()
        columns.append(decoded_avro(AvroValues(schema, ((number, schemas[number]),)), f"v{number}").alias(name))
    (native,) = (
        spark.createDataFrame(pa.table({name: [value] for name, value in records.items()}))
        .select(*columns)
        .toArrow()
        .to_pylist()
    )
    for name, case in CASES.items():
        if plain(native[name]) != {**case.read, VALID: True}:
            wrong[f"{name}, in Spark"] = native[name]
    assert not wrong


def test_what_is_no_record_is_rejected_with_id_and_reason(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "subject_schemas", lambda _: {1: schema_text([A])})
    good = python_bytes(CASES["the same"])
    text = Avro(schema_text([field("a", "int"), field("b", "string", default="-")]))
    values = {
        "known": MAGIC + (1).to_bytes(4) + good[:1],
        "trailing bytes are ignored": MAGIC + (1).to_bytes(4) + good,
        "truncated": MAGIC + (1).to_bytes(4),
        "json": b'{"a": 1}',
        "empty": b"",
    }
    source = spark.createDataFrame(
        [(None, value, "t", 0, n, AT, None) for n, value in enumerate(values.values())], SOURCE
    ).coalesce(1)
    input_ = Input(Topic("t", schema=text), event_time="record.timestamp", record=True)
    rows = decode_records(source, input_, F.current_timestamp()).orderBy("record.offset").collect()
    assert [(row.a, row.b, row._record.reason) for row in rows] == [
        (1, "-", None),
        (1, "-", None),
        (None, None, "not Avro of schema id 1: EOFError"),
        (None, None, "not in the wire format of a schema registry: it begins with 0x7b2261223a"),
        (None, None, "not in the wire format of a schema registry: it is empty"),
    ]


def plain(value: Any) -> Any:
    """A map of Arrow as a dictionary."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value
