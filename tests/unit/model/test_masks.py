"""Masks: what the clause MASK and Python declare, and which are refused without Spark."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog import build, mask_connections
from penstock.catalog.listing import catalog_rows
from penstock.errors import DeclarationError, SettingError
from penstock.model.avro import Avro
from penstock.model.sink import Sink
from penstock.model.sql import sink_file
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.settings import connections, settings
from penstock.sinks.core.stream import sink_stream
from penstock.streams import (
    Archive,
    Backfill,
    EmitFinal,
    Mask,
    RowsQuery,
    Stream,
    Topic,
    TopicOutput,
)

FIELDS = "email STRING NOT NULL, card STRING, note STRING, at BIGINT NOT NULL, customer STRUCT<email: STRING, n: INT>"
INTO = f"STREAM INTO safe READ sold AS JSON ({FIELDS}) EVENT TIME timestamp_millis(at)"
ROWS = "KEY email AS SELECT email, card, note, customer FROM sold"
SAFE = TopicOutput(Topic("safe"), key="email", value=("card", "note", "customer"))


def stream(clauses: str, rows: str = ROWS) -> Stream:
    return sql_stream(parse(f"{INTO}\n{clauses} {rows}", Path("sql/streams/safe.sql")), {})


def sink(clauses: str, into: str = "elasticsearch.safe", time: str = "timestamp_millis(at)") -> Sink:
    read = f"READ sold AS JSON ({FIELDS}) EVENT TIME {time}"
    return sink_file.parse(f"UPSERT INTO {into} {read}\n{clauses} AS SELECT * FROM sold", Path("sql/sinks/safe.sql"))


def test_the_clause_is_the_mask_that_python_declares() -> None:
    clause = "MASK email HASHED WITH pii, card encrypted with `cards-2.x`, note DROPPED, customer.email HASHED WITH pii"
    masks = (
        Mask("email", "hashed", "pii"), Mask("card", "encrypted", key="cards-2.x"), Mask("note", "dropped"),
        Mask("customer.email", "hashed", key="pii"),
    )  # fmt: skip
    one = stream(clause)
    assert one.output == replace(SAFE, mask=masks)
    assert sink(clause).mask == masks
    [row] = catalog_rows(build([one]))
    assert row.masks == [
        "email HASHED WITH pii", "card ENCRYPTED WITH cards-2.x", "note DROPPED", "customer.email HASHED WITH pii",
    ]  # fmt: skip


def test_a_mask_is_where_it_is_declared() -> None:
    assert stream("MASK card DROPPED,\n note DROPPED").output.mask[1].location == "sql/streams/safe.sql:3:2"  # type: ignore[union-attr]
    assert Path(Mask("a", "dropped").location.partition(":")[0]).name == "test_masks.py"


REFUSED = [
    ("MASK card DROPPED,", "the mask of a column is not known; got: email"),
    ("MASK email", "the mask of a column is not known; got: KEY"),
    ("MASK email BLURRED WITH pii", "the mask of a column is not known; got: BLURRED; hint: take one of: hashed"),
    ("MASK email HASHED", "expected WITH"),
    ("MASK note DROPPED WITH pii", "a column that is dropped has no key"),
    ("MASK note DROPPED, note HASHED WITH pii", "two masks concern one column; got: note"),
    ("MASK customer DROPPED, customer.email HASHED WITH pii", "two masks concern one column; got: customer.email"),
    ("MASK customer.n DROPPED, Customer HASHED WITH pii", "two masks concern one column; got: Customer"),
    ("MASK at HASHED WITH pii", "a mask names a column that is not written; got: at; hint: take one of: email, card"),
    ("MASK email DROPPED", "a column of the key cannot be dropped; got: email DROPPED; hint: hash or encrypt it"),
    ("MASK card DROPPED, note DROPPED, customer DROPPED", "no column of the value is left"),
    ("MASK note DROPPED MASK card DROPPED", "a clause is repeated; got: MASK"),
    ("MASK `a..b` DROPPED", "the mask of a..b names no column"),
    ("MASK note HASHED WITH `a b`", "the name of its key is not usable; got: 'a b'"),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "what"), REFUSED, ids=[clause for clause, _ in REFUSED])
def test_what_cannot_be_meant_is_refused_where_it_stands(clause: str, what: str) -> None:
    with pytest.raises(DeclarationError) as e:
        stream(clause)
    assert what in str(e.value)
    assert str(e.value).startswith("sql/streams/safe.sql:")


@pytest.mark.parametrize("value", [("card", "card.number"), ("card", "`card`"), ("card", "*")])
def test_a_column_by_another_name_does_not_escape_its_mask(value: tuple[str, ...]) -> None:
    with pytest.raises(DeclarationError, match="this may be a masked column"):
        TopicOutput(Topic("safe"), value=value, mask=(Mask("card", "hashed", "pii"),))
    assert TopicOutput(Topic("safe"), value=value)


def test_an_output_gives_no_column_that_is_not_masked() -> None:
    with pytest.raises(DeclarationError, match="the output to topic safe is not masked; got: card"):
        replace(SAFE, mask=(Mask("card", "hashed", "pii"),)).columns()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("", "hashed", "pii"), "names no column"),
        (("a", "HASHED", "pii"), "the method is not known"),
        (("a", "hashed"), "needs a key; got: a HASHED; hint: name a key"),
        (("a", "dropped", "pii"), "needs no key"),
        ((1, "dropped"), "column is not what it should be"),
    ],
)
def test_python_is_refused_alike(arguments: tuple[Any, ...], what: str) -> None:
    with pytest.raises(DeclarationError, match=what):
        Mask(*arguments)
    with pytest.raises(DeclarationError, match="mask is not what it should be"):
        replace(SAFE, mask=[Mask("card", "dropped")])  # type: ignore[arg-type]


def test_a_stream_with_state_drops_no_column() -> None:
    """Spark keeps nothing in state for a column that nothing reads."""
    mode = EmitFinal(window=timedelta(minutes=1), grace=timedelta(seconds=1))
    for clause in ("MASK card HASHED WITH pii", "MASK customer.n DROPPED"):
        assert replace(stream(clause), output_mode=mode)
    with pytest.raises(DeclarationError, match="to drop one would change the state; got: note DROPPED"):
        replace(stream("MASK card HASHED WITH pii, note DROPPED"), output_mode=mode)


def avro(**fields: object) -> Topic:
    names = [{"name": name, "type": kind} for name, kind in fields.items()]
    return Topic("safe", schema=Avro(json.dumps({"type": "record", "name": "Safe", "fields": names})))


def test_a_schema_of_avro_has_what_masks_make_of_columns() -> None:
    clause = "MASK card HASHED WITH pii, note DROPPED, customer DROPPED"
    masked = stream(clause).output
    assert isinstance(masked, TopicOutput)
    for kind in ("string", ["null", "string"]):
        assert replace(stream(clause), output=replace(masked, topic=avro(card=kind)))
    with pytest.raises(DeclarationError, match="does not fit a mask; got: card HASHED WITH pii; card is long"):
        replace(stream(clause), output=replace(masked, topic=avro(card="long")))
    with pytest.raises(DeclarationError, match="does not fit a mask; got: note DROPPED; note is string"):
        replace(stream(clause), output=replace(masked, topic=avro(card="string", note="string")))
    with pytest.raises(DeclarationError, match="has not the fields of its Avro schema"):
        replace(stream(clause), output=replace(masked, topic=avro(card="string", other="string")))


SINKS = [
    ("VERSION card MASK card HASHED WITH pii", "the column of VERSION cannot be hashed"),
    ("SUFFIX DAY (card) MASK card ENCRYPTED WITH pii", "the column of SUFFIX cannot be encrypted"),
    ("MASK at HASHED WITH pii", "the column of EVENT TIME cannot be hashed"),
    ("KEY (email) MASK email DROPPED", "a column of KEY cannot be dropped"),
    ("FIELDS (note KEYWORD) MASK note DROPPED", "a column of FIELDS cannot be dropped"),
]  # fmt: skip


@pytest.mark.parametrize(("clauses", "what"), SINKS)
def test_what_a_store_must_read_is_not_masked(clauses: str, what: str) -> None:
    with pytest.raises(DeclarationError, match=what) as e:
        sink(clauses)
    assert str(e.value).startswith("sql/sinks/safe.sql:2:")


def test_other_stores_are_no_exception() -> None:
    for clauses, what in (
        ("INDEX (note) MASK note DROPPED", "INDEX"),
        ("UNIQUE INDEX (note) MASK note DROPPED", "INDEX"),
    ):
        with pytest.raises(DeclarationError, match=f"a column of .*{what} cannot be dropped"):
            sink(clauses, "mongodb.shop.safe")
    for clauses, what in (
        ("TAGS (email) TIME (card) MASK card HASHED WITH pii", "the column of TIME cannot be hashed"),
        ("TAGS (email) MASK email DROPPED", "a column of TAGS cannot be dropped"),
    ):
        with pytest.raises(DeclarationError, match=what):
            sink(clauses, "influxdb.shop.safe")
    with pytest.raises(DeclarationError, match="the column of MEASUREMENT cannot be hashed"):
        sink("MEASUREMENT (card) TAGS (email) MASK card HASHED WITH pii", "influxdb.shop")
    assert sink("KEY (email) VERSION (at) MASK email HASHED WITH pii, card ENCRYPTED WITH pii").mask


def test_a_store_gets_no_rows_that_a_transform_does_not_mask() -> None:
    one = sink_stream(sink("MASK card HASHED WITH pii"))
    assert one.output.mask == one.transform.mask == (Mask("card", "hashed", "pii"),)  # type: ignore[union-attr, attr-defined]
    with pytest.raises(DeclarationError, match="its transform does not mask the rows of elasticsearch"):
        replace(one, transform=lambda topic_1: topic_1)


EVENTS = Topic("events")
KEPT = Archive("kept", EVENTS, bucket="lake")


@pytest.mark.parametrize(
    ("mask", "what"),
    [
        (Mask("value.email", "hashed", "pii"), "a field of a value cannot be masked alone.*archive its topic"),
        (Mask("value", "dropped"), "value cannot be dropped.*it can be hashed or encrypted"),
        (Mask("headers", "hashed", "pii"), "headers cannot be hashed.*it can be dropped"),
        (Mask("offset", "dropped"), "a mask names a column that is not written.*key, value, headers"),
        (Mask("event_time", "hashed", "pii"), "a mask names a column that is not written"),
    ],
)
def test_what_an_archive_cannot_mask_is_refused(mask: Mask, what: str) -> None:
    with pytest.raises(DeclarationError, match=what):
        replace(KEPT, mask=(mask,))


def test_a_backfill_writes_nothing_that_a_stream_would_have_masked() -> None:
    masked = replace(SAFE, mask=(Mask("card", "hashed", "pii"),))
    rows = RowsQuery("timestamp_millis(at)", "SELECT email, card, note, customer FROM records", schema=FIELDS)
    with pytest.raises(DeclarationError, match="does not mask its rows, and its output does"):
        Backfill("b", KEPT, masked, rows=rows)
    one = stream("MASK card HASHED WITH pii")
    with pytest.raises(
        DeclarationError, match="does not mask what it writes, and stream safe does; got: safe: card HASHED"
    ):
        build([one, KEPT, Backfill("b", KEPT, SAFE, rows=rows)])
    for method in ("hashed", "encrypted"):
        encrypted = replace(KEPT, mask=(Mask("value", method, "pii"),))
        with pytest.raises(DeclarationError, match="reads an archive whose records are masked"):
            Backfill("b", encrypted, one)
    with pytest.raises(DeclarationError, match="reads an archive whose records are masked"):
        Backfill("b", replace(KEPT, mask=(Mask("key", "hashed", "pii"),)), EVENTS)


def key(size: int) -> str:
    return base64.b64encode(bytes(range(size))).decode()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    texts = {"good": key(32), "short": key(8), "odd": key(20), "plain": "not base64!"}
    monkeypatch.setenv("PENSTOCK_MASK_KEYS", json.dumps(texts))
    settings.cache_clear()
    return monkeypatch


def test_a_key_is_of_the_setting_or_of_a_connection(keys: pytest.MonkeyPatch) -> None:
    keys.setenv("AIRFLOW_CONN_PII_2", json.dumps({"conn_type": "penstock_mask_key", "password": key(24)}))
    keys.setenv("AIRFLOW_CONN_GOOD", json.dumps({"conn_type": "generic", "password": key(16)}))
    assert settings().mask_key("good", encrypts=True) == bytes(range(32))
    assert settings().mask_key("pii-2", encrypts=True) == bytes(range(24))
    assert settings().mask_key("odd", encrypts=False) == bytes(range(20))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (
            "gone",
            'key gone of masks is missing.*AIRFLOW_CONN_GONE.*PENSTOCK_MASK_KEYS=\'."gone".*openssl rand -base64 32',
        ),
        ("short", "key short has no length of an AES key; got: 8 bytes"),
        ("odd", "key odd has no length of an AES key; got: 20 bytes"),
        ("plain", "key plain of masks is not base64"),
        ("kafka", "connection kafka is of another type; got: kafka"),
        ("empty", "connection empty has no password"),
    ],
)
def test_a_key_that_is_no_use_is_refused_and_not_shown(keys: pytest.MonkeyPatch, name: str, what: str) -> None:
    keys.setenv("AIRFLOW_CONN_KAFKA", f"kafka://:{key(32).rstrip('=')}@b")
    keys.setenv("AIRFLOW_CONN_EMPTY", "generic://")
    with pytest.raises(SettingError, match=what) as e:
        settings().mask_key(name, encrypts=True)
    assert not any(secret in str(e.value) for secret in (key(8), key(20), key(32)[:12], "not base64!"))


def test_a_setting_that_is_no_json_is_refused_and_not_shown(keys: pytest.MonkeyPatch) -> None:
    for text in (key(32), '["a"]', '{"pii": 1}'):
        keys.setenv("PENSTOCK_MASK_KEYS", text)
        settings.cache_clear()
        with pytest.raises(SettingError, match="PENSTOCK_MASK_KEYS: write a JSON object of names") as e:
            settings()
        assert text[:12] not in str(e.value).partition("got:")[2]


@pytest.mark.processes
def test_launchers_find_the_connections_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.supervision import launch

    modules = {
        "jobs/shop/safe.py": 'M = Mask("a", "hashed", key="of-python"), Mask("b", "encrypted", "second")',
        "jobs/shop/broken.py": "Mask(",
        "sql/streams/safe.sql": f"{INTO} MASK card HASHED WITH of-stream {ROWS}",
        "sql/streams/broken.sql": "STREAM MASK",
        "sql/sinks/s.sql": f"UPSERT INTO elasticsearch.safe READ sold AS JSON ({FIELDS}) MASK card HASHED WITH of-sink "
        "AS SELECT card FROM sold",
    }  # fmt: skip
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert mask_connections(tmp_path) == {"of-python", "second", "of-stream", "of-sink"}
    monkeypatch.setattr(connections, "_lookups", [{"of-sink": "generic://:x@", "second": "generic://:y@"}.get])
    given = {"AIRFLOW_CONN_OF_SINK": "generic://:x@", "AIRFLOW_CONN_SECOND": "generic://:y@"}
    assert launch.connection_variables("shop", tmp_path) == launch.connection_variables("", tmp_path) == given
    # A release is checked with the keys of the snapshot that is released.
    monkeypatch.setattr(launch, "environment", lambda _: dict(os.environ))
    (tmp_path / "shown.py").write_text(
        "import json, os; print(json.dumps({'second': os.environ['AIRFLOW_CONN_SECOND']}))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert launch.run_json_module(("shown",), 60, tmp_path) == {"second": "generic://:y@"}
    assert launch.connection_variables("views-1", tmp_path) == launch.connection_variables("captures", tmp_path) == {}
