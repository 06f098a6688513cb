"""Rows of a query, as Avro too, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive import records
from penstock.backfill import run, transform
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.query_rows import encoded_rows
from penstock.codec.avro import AvroDecoder
from penstock.codec.avro_encoder import AvroEncoder
from penstock.codec.registry_values import RegistryValues
from penstock.errors import BackfillError, DeclarationError
from penstock.model.avro import Avro
from penstock.streams import Archive, Backfill, RowsQuery, Topic, TopicOutput
from tests.support.avro_cases import DECIMAL, field, logical, optional, record, schema_text

HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC)
INNER = record("Inner", field("a", "int"), field("b", optional("string")))
NESTED = {
    "struct": INNER, "list": {"type": "array", "items": "long"}, "map": {"type": "map", "values": "long"},
    "decimals": {"type": "array", "items": DECIMAL}, "date": logical("int", "date"), "float": "float",
}  # fmt: skip
SCHEMA = Avro(schema_text([field("id", "int"), field("_key", "string")]))


def rows(query: str, schema: Avro = SCHEMA) -> pa.Table:
    with duckdb.connect() as connection:
        relation = connection.sql(f"SELECT encode('k') AS _key, * FROM ({query})")
        return pa.concat_tables(encoded_rows("backfill b", relation, AvroEncoder(schema, 1)))


def test_a_field_may_have_the_name_of_the_key() -> None:
    table = rows("SELECT 1::INT AS id, 'v' AS _key")
    assert table["key"].to_pylist() == [b"k"]
    values, _ = AvroDecoder(RegistryValues(SCHEMA, ((1, SCHEMA.text),))).decode(table["value"].combine_chunks())
    assert values.to_pylist() == [{"id": 1, "_key": "v"}]


def test_a_row_that_does_not_fit_is_refused_by_its_key() -> None:
    with pytest.raises(DeclarationError, match="key k: field _key is NULL"):
        rows("SELECT id::INT AS id, CASE id WHEN 1 THEN 'v' END AS _key FROM range(1, 3) r(id)")
    with pytest.raises(DeclarationError, match="column id cannot be written as its Avro field"):
        rows("SELECT 1.5 AS id, 'v' AS _key")


@pytest.mark.parametrize(
    ("name", "sql", "read"),
    [
        ("struct", "{'b': 'x', 'a': 1}", {"a": 1, "b": "x"}),
        ("struct", "{'a': 1::BIGINT, 'b': NULL}", {"a": 1, "b": None}),
        ("list", "[1::INT, 2]", [1, 2]), ("list", "[]", []), ("map", "MAP {'k': 1::INT}", [("k", 1)]),
        ("struct", "{'a': 1}", None), ("struct", "{'a': 1, 'c': 'x'}", None),
        ("struct", "{'a': now(), 'b': 'x'}", None),
        ("list", "[now()]", None), ("list", "[[1]]", None), ("map", "MAP {'k': now()}", None),
        ("map", "MAP {1: 1}", None), ("decimals", "[1.5::DOUBLE]", None),
        ("date", "DATE '2026-02-03'", date(2026, 2, 3)), ("date", "TIMESTAMP '2026-02-03 04:05:06'", None),
        ("float", "1e300::DOUBLE", None), ("float", "1.5::FLOAT", 1.5),
    ],
)  # fmt: skip
def test_what_is_in_structs_lists_and_maps_keeps_its_meaning_or_is_refused(name: str, sql: str, read: object) -> None:
    schema = Avro(schema_text([field("v", NESTED[name])]))
    if read is None:
        with pytest.raises(DeclarationError, match="column v cannot be written as its Avro field"):
            rows(f"SELECT {sql} AS v", schema)
        return
    values = rows(f"SELECT {sql} AS v", schema)["value"].combine_chunks()
    decoded, errors = AvroDecoder(RegistryValues(schema, ((1, schema.text),))).decode(values)
    assert (decoded.to_pylist(), errors.to_pylist()) == ([{"v": read}], [None])


def job_of(schema: str, query: str) -> BackfillJob:
    backfill = Backfill(
        "great", Archive("kept", Topic("t"), bucket="lake"), TopicOutput(Topic("to"), key="id", value=("id", "x")),
        rows=RowsQuery("timestamp_millis(at)", query, schema=schema),
    )  # fmt: skip
    return BackfillJob(backfill, HOUR, HOUR + timedelta(hours=1), "to")


def made_rows(folder: Path, job: BackfillJob, *batches: list[bytes]) -> Path:
    """The rows of a job over records with these values, a file for each batch."""
    for number, values in enumerate(batches):
        given = [
            {"topic": "t", "partition": number, "offset": n, "value": value, "event_time": HOUR}
            for n, value in enumerate(values)
        ]
        pq.write_table(pa.Table.from_pylist(given, records.SCHEMA), folder / f"{number}.parquet")
    plan = BackfillMarker({}, {}, {}, "", {}, 0)
    return transform.make_rows(job, sorted(folder.glob("*.parquet")), plan, folder, lambda *_: iter(()))


def test_a_query_finds_what_is_no_number(tmp_path: Path) -> None:
    """NaN is greater than every number, and statistics of a file do not have it."""
    a, b, c = (b'{"id": "%s", "x": %s, "at": 1}' % value for value in ((b"a", b'"NaN"'), (b"b", b"1"), (b"c", b"7")))
    job = job_of("id STRING, x DOUBLE, at BIGINT", "SELECT id, x FROM records WHERE x > 5")
    made = made_rows(tmp_path, job, [a, b], [c])
    assert [key for table in transform.read_rows(made) for key in table["key"].to_pylist()] == [b"a", b"c"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id, CAST(x AS INT) AS x FROM records", "Could not convert string 'no number' to INT32"),
        ("SELECT id, error('not ' || x) AS x FROM records", "not no number"),
    ],
)
def test_a_query_that_fails_on_a_value_is_told(tmp_path: Path, query: str, message: str) -> None:
    job = job_of("id STRING, x STRING, at BIGINT", query)
    with pytest.raises(DeclarationError, match="backfill great: its query fails on these records") as e:
        made_rows(tmp_path, job, [b'{"id": "a", "x": "no number", "at": 1}'])
    assert message in str(e.value)
    assert "CREATE TABLE" not in str(e.value)


def test_a_query_that_needs_too_much_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform, "MEMORY_LIMIT", "20MB")
    query = "SELECT id, (SELECT string_agg(repeat(x, 1000), '') FROM records, range(100000)) AS x FROM records"
    job = job_of("id STRING, x STRING, at BIGINT", query)

    def execute(_: object) -> None:
        made_rows(tmp_path, job, [b'{"id": "a", "x": "v", "at": 1}'])

    monkeypatch.setattr(run._Run, "execute", execute)
    with pytest.raises(BackfillError, match="the rows fit neither into memory nor on the disk") as e:
        run.run(job, "", recompute=lambda *_: iter(()))
    assert str(e.value).startswith("backfill great ")
    assert e.value.hint
