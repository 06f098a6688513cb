"""Masked outputs on real batches: what topics, dead letters, a preview, a log and a checkpoint hold."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.archive import records
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.plan_fingerprint import build_frame
from penstock.engine.operations.recompute import recompute_rows
from penstock.engine.operations.stream_explanation import explain
from penstock.engine.operations.stream_preview import NOT_SHOWN, PreviewBatch, StreamPreview
from penstock.errors import Blocked, DeclarationError, SettingError
from penstock.kafka.admin import admin, partition_counts
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.model.topic import DEAD_LETTERS
from penstock.settings import settings
from penstock.streams import F, Fold, KeyedState, Mask, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send

pytestmark = pytest.mark.integration

KEY = bytes(range(40, 72))
AT = 1_700_000_000_000
FIELDS = (
    "email STRING, card STRING, note STRING, amount BIGINT, customer STRUCT<phone: STRING, town: STRING>, at BIGINT"
)
CLAUSES = f"""STREAM INTO safe-sales PARTITIONS 1 COMPACTED
READ sold AS JSON ({FIELDS} NOT NULL) EVENT TIME timestamp_millis(at)
KEY email
VALUE (email, card, note, amount, customer)
MASK email HASHED WITH pii, card ENCRYPTED WITH pii, note DROPPED, customer.phone HASHED WITH pii"""
SELECT = "AS SELECT email, card, note, amount, customer FROM sold"
# What no topic but the input may hold.
SECRETS = ("ann@x", "4111-1111-22", "secret note", "555-123")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("PENSTOCK_MASK_KEYS", json.dumps({"pii": base64.b64encode(KEY).decode()}))
    settings.cache_clear()
    yield monkeypatch
    settings.cache_clear()


def declared(clauses: str = "", select: str = SELECT, head: str = CLAUSES) -> Stream:
    stream = sql_stream(parse(f"{head}\n{clauses} {select}", Path("sql/streams/safe.sql")), {})
    [given] = stream.sources.values()
    assert given.topic
    kept = replace(given, topic=replace(given.topic, partitions=1, config={"retention.ms": "-1"}))
    return replace(stream, inputs={"sold": kept})


def sell(bootstrap: str, *amounts: int | str, email: str | None = "ann@x") -> None:
    customer = {"phone": "555-123", "town": "Aachen"}
    sale = {"email": email, "card": "4111-1111-22", "note": "secret note", "customer": customer, "at": AT}
    send(bootstrap, [Record("sold", None, json.dumps(sale | {"amount": one}), timestamp=AT) for one in amounts])


def digest(text: str) -> str:
    return hmac.digest(KEY, text.encode(), hashlib.sha256).hex()


def outside(bootstrap: str, *ignored: str) -> list[str]:
    """Everything that the broker holds but for some topics, as text."""
    names = sorted(partition_counts(admin(bootstrap), bootstrap).keys() - {"sold", *ignored, "__consumer_offsets"})
    return [f"{name}: {record}" for name in names for record in read(bootstrap, name)]


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, *declared().topics())
    return fresh_broker.bootstrap


def test_no_output_dead_letter_log_or_checkpoint_has_a_value_or_a_key(
    spark: SparkSession, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One row is written, one violates a rule, and one is refused for its key, which is NULL."""
    stream = declared("EXPECT few amount < 100 AND card <> '' ON VIOLATION DEAD LETTER")
    sell(bootstrap, 1, 200)
    sell(bootstrap, 3, email=None)
    with caplog.at_level(logging.DEBUG), running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert (run.figures.rows_out, run.figures.dead) == (1, 2)
    [record] = read(bootstrap, "safe-sales")
    assert record.key == digest("ann@x")
    value = json.loads(record.value or "")
    card = value.pop("card")
    customer = {"phone": digest("555-123"), "town": "Aachen"}
    assert value == {"email": digest("ann@x"), "amount": 1, "customer": customer}
    letters = read(bootstrap, DEAD_LETTERS.name)
    assert sorted(json.loads(letter.value or "")["amount"] for letter in letters) == [3, 200]
    # What is written again is the same, to the last byte.
    assert {json.loads(letter.value or "")["card"] for letter in letters} == {card}
    files = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    shown = [*outside(bootstrap), *files, *(entry.getMessage() for entry in caplog.records)]
    forms = (*SECRETS, base64.b64encode(KEY).decode()[:20], KEY.hex(), str(list(KEY))[1:40], KEY.decode()[:10])
    assert not [(form, text[:200]) for form in forms for text in shown if form in text]


def test_a_failing_rule_a_preview_and_explain_show_masked_values(spark: SparkSession, bootstrap: str) -> None:
    stream = declared("EXPECT few amount < 100 ON VIOLATION DEAD LETTER")
    sell(bootstrap, 1, 200, "ann@x has many")
    batches: list[PreviewBatch] = []
    preview = StreamPreview(stream, spark, bootstrap, "earliest", batches.append)
    with preview.running():
        preview.process_all_available()
    [table] = [batch.rows["safe-sales"] for batch in batches if batch.rows["safe-sales"].num_rows]
    examples = [example for batch in batches for example in batch.dead_examples]
    assert table["key"].to_pylist() == [digest("ann@x").encode()]
    assert (None, f"field amount is no bigint; {NOT_SHOWN}") in examples
    assert not [secret for secret in SECRETS if secret in f"{table.to_pylist()} {examples}"]
    assert ("note", "string") in explain(stream, spark).columns
    failing = replace(declared("EXPECT few amount < 100 ON VIOLATION FAIL"), name="failing")
    preview = StreamPreview(failing, spark, bootstrap, "earliest", batches.append)
    with pytest.raises(Blocked, match=digest("ann@x")) as e, preview.running():
        preview.wait(60)
    assert not [secret for secret in SECRETS if secret in str(e.value)]


def test_each_output_has_masks_of_its_own(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    def transform(sold: DataFrame) -> DataFrame:
        return sold.select("email", "amount", F.when(F.col("amount") > 9, "large").otherwise("small").alias("output"))

    masks = (Mask("email", "hashed", "pii"), Mask("amount", "dropped"))
    outputs = {
        "large": TopicOutput(Topic("large"), key="email", value=("email", "amount"), mask=masks),
        "small": TopicOutput(Topic("small"), value=("email", "amount")),
    }
    stream = Stream("split", "shop", declared().inputs, transform, outputs, Stateless())
    create(bootstrap, *stream.topics())
    sell(bootstrap, 1, 10)
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    [large], [small] = read(bootstrap, "large"), read(bootstrap, "small")
    assert (large.key, json.loads(large.value or "")) == (digest("ann@x"), {"email": digest("ann@x")})
    assert json.loads(small.value or "") == {"email": "ann@x", "amount": 1}


def test_without_a_key_nothing_starts(
    spark: SparkSession, bootstrap: str, tmp_path: Path, keys: pytest.MonkeyPatch
) -> None:
    """Neither a query nor a release, whose check builds the same frame."""
    sell(bootstrap, 1)
    other = declared(head=CLAUSES.replace("customer.phone", "amount.x"))
    with pytest.raises(DeclarationError, match=r"safe.sql:5:68: the mask of amount.x: amount is no struct: bigint"):
        build_frame(spark, other, bootstrap, {})
    keys.delenv("PENSTOCK_MASK_KEYS")
    settings.cache_clear()
    with pytest.raises(SettingError, match="key pii of masks is missing"):
        build_frame(spark, declared(), bootstrap, {})
    with (
        pytest.raises(SettingError, match="key pii of masks is missing"),
        running(declared(), spark, bootstrap, tmp_path),
    ):
        pass
    assert not read(bootstrap, "safe-sales")


def test_state_is_not_rebuilt_from_masked_columns(spark: SparkSession, bootstrap: str) -> None:
    fold = Fold(
        name="totals", key=("email",), state_schema="total BIGINT", output_schema="email STRING, total BIGINT",
        update_sql="SELECT email, sum(records.amount)::BIGINT + coalesce(any_value(state.total), 0) AS total "
        "FROM records LEFT JOIN state USING (email) GROUP BY email",
        emit_sql="SELECT email, total FROM folded", restore_sql="SELECT email, total FROM output",
    )  # fmt: skip
    output = TopicOutput(Topic("totals", compacted=True), key="email", value=("email", "total"))
    stream = Stream(
        "totals", "shop", declared().inputs, lambda sold: fold(sold).where("total > 0"), output,
        KeyedState(timedelta(minutes=1)),
    )  # fmt: skip
    assert build_frame(spark, stream, bootstrap, {})
    masked = replace(stream, output=replace(output, mask=(Mask("email", "hashed", "pii"),)))
    with pytest.raises(DeclarationError, match="`restore_sql` reads a column that its output masks; got: email HASHED"):
        build_frame(spark, masked, bootstrap, {})


def test_a_recompute_writes_the_same_masked_windows(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Windows that are updated, under a key that is hashed, with a value that is encrypted."""
    head = CLAUSES.partition("KEY")[0]
    stream = declared(
        "KEY (email, minute) VALUE (town, total) MASK email HASHED WITH pii, town ENCRYPTED WITH pii",
        "EMIT CHANGES WINDOW 1 MINUTE GRACE 1 MINUTE AS SELECT email, unix_millis(window.start) AS minute, "
        "max(customer.town) AS town, sum(amount) AS total FROM sold GROUP BY email, window(event_time, '1 minute')",
        head,
    )
    sell(bootstrap, 1, 2)
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        sell(bootstrap, 3, email="bob@x")
        sell(bootstrap, 4)
        run.process_all_available()
    written = {record.key: record.value for record in read(bootstrap, "safe-sales")}
    assert [json.loads(value or "")["total"] for value in written.values()] == [7, 3]
    assert {json.loads(key or "")["email"] for key in written} == {digest("ann@x"), digest("bob@x")}
    at = datetime.fromtimestamp(AT / 1000, UTC)
    archived = [
        {"topic": "sold", "partition": 0, "offset": n, "key": None, "value": (record.value or "").encode(),
         "timestamp": at, "headers": None, "event_time": at}
        for n, record in enumerate(read(bootstrap, "sold"))
    ]  # fmt: skip
    path = tmp_path / "hour.parquet"
    pq.write_table(records.to_archive_schema(pa.Table.from_pylist(archived, records.SCHEMA)), path)
    hour = timedelta(hours=1)
    again = recompute_rows(spark, [stream], [str(path)], start=at - hour, end=at + hour)
    rows = [row for batch in again for row in batch.select(["key", "value"]).to_pylist()]
    assert {row["key"].decode(): row["value"].decode() for row in rows} == written
