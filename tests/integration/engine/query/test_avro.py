"""Avro that Java and Python wrote is read with equal values, natively by Spark and by the decoder without Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec.avro import VALID, AvroDecoder
from penstock.codec.registry_values import RegistryValues
from penstock.engine.query import decode
from penstock.engine.query.decode import decode_records
from penstock.engine.query.native_avro import decoded_avro
from penstock.engine.query.written_values import written_columns
from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.registry import client
from penstock.registry.wire_format import MAGIC
from penstock.streams import Input, Topic, TopicOutput
from tests.support.avro_cases import AT, CASES, A, AvroCase, field, logical, python_bytes, record, schema_text

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
    monkeypatch.setattr(client, "schema_of", lambda number, _: client.WriterSchema(schemas[number], "AVRO"))
    records, columns = {}, []
    wrong: dict[str, Any] = {}
    for number, (name, case) in enumerate(CASES.items()):
        written = python_bytes(case)
        assert written == java_bytes(spark, case), name
        records[f"v{number}"] = MAGIC + number.to_bytes(4) + written
        schema = Avro(schema_text(case.reader))
        rows, errors = AvroDecoder(RegistryValues(schema)).decode(pa.array([records[f"v{number}"]]))
        if (errors.to_pylist(), [plain(rows[0].as_py())]) != ([None], [case.read]):
            wrong[name] = errors.to_pylist(), rows.to_pylist()
        columns.append(decoded_avro(RegistryValues(schema, ((number, schemas[number]),)), f"v{number}").alias(name))
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
    monkeypatch.setattr(client, "subject_schemas", lambda *_: {1: schema_text([A])})
    monkeypatch.setattr(decode, "find_endpoint", lambda: None)
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


def test_a_decimal_of_more_than_64_bits_is_rejected(spark: SparkSession) -> None:
    text = schema_text([field("d", logical("bytes", "decimal", precision=3, scale=1))])
    values = RegistryValues(Avro(text), ((1, text),), has_decoded=True)
    header = MAGIC + (1).to_bytes(4)
    source = pa.table({"value": [header + b"\x02\x0f", header + b"\x12\x01" + bytes(7) + b"\x05"]})
    table = spark.createDataFrame(source).select("value", decoded_avro(values).alias("decoded")).coalesce(1).toArrow()
    rows, errors = AvroDecoder(values).decode_table(table)
    assert rows.to_pylist() == [{"d": Decimal("1.5")}, None]
    assert [bool(error) for error in errors.to_pylist()] == [False, True]


def test_columns_are_written_by_name_and_unchanged_or_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "registered_id", lambda *_: 1)
    inner = record("N", field("a", "string"), field("b", "string"))
    types = [inner, {"type": "array", "items": "N"}, logical("long", "time-micros"), "int", "long"]
    names = ["s", "l", "t", "i", "m"]
    schema = Avro(schema_text([field(name, of) for name, of in zip(names, types, strict=True)]))
    output = TopicOutput(Topic("t", schema=schema), key="i", value=tuple(names))

    def written(**changed: str) -> Any:
        columns = {"s": "named_struct('b', 'B', 'a', 'A')", "t": "1500L", "i": "3L", "m": "4", **changed}
        rows = spark.range(1).select(*(F.expr(sql).alias(name) for name, sql in columns.items()))
        rows = rows.withColumn("l", F.array("s"))
        return rows.select(*written_columns(rows, output, schema, {}))

    rows, _ = AvroDecoder(RegistryValues(schema, ((1, schema.text),))).decode(
        written().toArrow()["value"].combine_chunks()
    )
    struct = {"a": "A", "b": "B"}
    assert rows.to_pylist() == [{"s": struct, "l": [struct], "t": 1500, "i": 3, "m": 4}]
    with pytest.raises(DeclarationError, match=r"topic t, s, b; got: binary for string; hint: .* base64"):
        written(s="named_struct('b', X'ff', 'a', 'A')")
    for name, sql, got in (
        ("s", "named_struct('x', 'B', 'a', 'A')", "got: x, a"),
        ("i", "1.7D", "got: double for int"),
        ("m", "current_timestamp()", "got: timestamp for bigint"),
    ):
        with pytest.raises(DeclarationError, match=f"topic t, {name}; {got}"):
            written(**{name: sql})


def plain(value: Any) -> Any:
    """A map of Arrow as a dictionary."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value
