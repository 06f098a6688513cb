"""A preview shows what a stream would write, and leaves nothing behind."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.operations.stream_explanation import explain
from penstock.engine.operations.stream_preview import (
    PreviewBatch,
    PreviewPlan,
    PreviewStart,
    StreamPreview,
    preview_folder,
)
from penstock.engine.session import session_for
from penstock.errors import Blocked, DeclarationError, PenstockError
from penstock.kafka.admin import admin, end_offsets, partition_counts
from penstock.model.output_mode import OutputMode
from penstock.settings import settings
from penstock.streams import EmitFinal, Expectation, F, Fold, Input, KeyedState, Stateless, Stream, Topic
from penstock.streams import TopicOutput as Out
from penstock.testing import Record, create, read, running, send

pytestmark = pytest.mark.integration

MINUTE = 1_699_999_980_000
ORDER = "shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL"
Transform = Callable[[DataFrame], DataFrame]
WINDOW, GRACE = timedelta(minutes=1), timedelta(seconds=10)


def totals(orders: DataFrame) -> DataFrame:
    summed = orders.groupBy("shop", F.window("event_time", "1 minute").alias("w")).agg(F.sum("amount").alias("total"))
    return summed.select("shop", F.unix_millis("w.start").alias("minute"), "total")


def doubled(orders: DataFrame) -> DataFrame:
    return orders.select("shop", F.unix_millis("event_time").alias("minute"), (F.col("amount") * 2).alias("total"))


TOTALS = Fold(
    name="totals", key=("shop",), state_schema="total DOUBLE", output_schema="shop STRING, total DOUBLE",
    update_sql="SELECT shop, sum(r.amount) + coalesce(any_value(s.total), 0) AS total FROM records r "
    "LEFT JOIN state s USING (shop) GROUP BY shop",
    emit_sql="SELECT shop, total FROM folded",
)  # fmt: skip


def running_total(orders: DataFrame) -> DataFrame:
    return TOTALS(orders).select("shop", F.lit(0).cast("bigint").alias("minute"), "total")


def stream(mode: OutputMode, transform: Transform = totals) -> Stream:
    return Stream(
        name="shop-totals", app="shop", inputs={"orders": Input(Topic("orders", partitions=2), schema=ORDER,
                                                                event_time="timestamp_millis(at)")},
        transform=transform, output=Out(Topic("shop-totals"), key=("shop", "minute"), value="total"), output_mode=mode,
    )  # fmt: skip


def send_orders(bootstrap: str, orders: Sequence[tuple[int, str]]) -> None:
    texts = [(at, f'{{"shop":"north","amount":{amount},"at":{at}}}') for at, amount in orders]
    send(bootstrap, [Record("orders", None, text, 0, timestamp=at) for at, text in texts])


class Collected:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.dead: list[tuple[bytes | None, str]] = []
        self.dead_count = self.late = 0
        self.violations: Counter[str] = Counter()
        self.plan: PreviewPlan | None = None

    def take(self, batch: PreviewBatch) -> None:
        table: pa.Table = batch.rows["shop-totals"]
        self.rows += [(row["key"].decode(), row["value"].decode()) for row in table.to_pylist()]
        self.dead_count, self.late = self.dead_count + batch.dead, self.late + batch.late
        self.dead += batch.dead_examples
        self.violations.update(batch.violations)


def previewed(declared: Stream, spark: SparkSession, bootstrap: str, start: PreviewStart = "earliest") -> Collected:
    result = Collected()
    run = StreamPreview(declared, session_for(spark, declared), bootstrap, start, result.take)
    with run.running() as plan:
        result.plan = plan
        run.process_all_available()
        run.wait(0.1)
    return result


def everything(bootstrap: str) -> tuple[object, ...]:
    """What a broker keeps: topics with their ends, and groups with their offsets."""
    counts = partition_counts(admin(bootstrap), bootstrap)
    ends = end_offsets(admin(bootstrap), [(t, p) for t, n in counts.items() for p in range(n)], bootstrap)
    # A client that nobody holds is closed before it answers.
    client = AdminClient({"bootstrap.servers": bootstrap})
    groups = client.list_consumer_groups(request_timeout=30).result(60).valid
    return counts, ends, sorted(group.group_id for group in groups)


@pytest.mark.parametrize(
    ("mode", "transform"),
    [
        (EmitFinal(window=WINDOW, grace=GRACE), totals),
        pytest.param(KeyedState(), running_total, marks=pytest.mark.long),
    ],
    ids=["final", "fold"],
)
def test_it_shows_what_the_stream_writes_and_leaves_nothing(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path, mode: OutputMode, transform: Transform
) -> None:
    declared, bootstrap = stream(mode, transform), fresh_broker.bootstrap
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in declared.topics()))
    send_orders(bootstrap, [(MINUTE + 20_000, "2.5"), (MINUTE + 300_000, "1"), (MINUTE, '"many"')])
    with running(declared, spark, bootstrap, tmp_path / "checkpoints") as run:
        run.process_all_available()
        send_orders(bootstrap, [(MINUTE, "7"), (MINUTE + 600_000, "3")])
        run.process_all_available()
        before = everything(bootstrap)
        first = previewed(declared, spark, bootstrap)
        assert everything(bootstrap) == before
        assert not [*(settings().home / "tmp").glob("*/shop-totals")]
        # It has fenced no one: the stream goes on.
        send_orders(bootstrap, [(MINUTE + 900_000, "4")])
        run.process_all_available()
        assert run.figures.restarts == 0
    [reason] = [why for _, why in first.dead]
    assert (first.dead_count, first.dead[0][0]) == (1, f'{{"shop":"north","amount":"many","at":{MINUTE}}}'.encode())
    assert "amount" in reason
    # A new stream reads all records in one batch, as the preview does.
    ends = {r.partition: r.offset + 1 for r in read(bootstrap, "shop-totals")}
    with running(replace(declared, name="other"), spark, bootstrap, tmp_path / "other") as run:
        run.process_all_available()
    written = [(r.key, r.value) for r in read(bootstrap, "shop-totals", ends)]
    assert sorted(previewed(declared, spark, bootstrap).rows) == sorted(written) != []


def test_late_records_are_counted(spark: SparkSession, fresh_broker: Broker) -> None:
    declared, bootstrap = stream(EmitFinal(window=WINDOW, grace=GRACE)), fresh_broker.bootstrap
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in declared.topics()))
    send_orders(bootstrap, [(MINUTE, "1"), (MINUTE + 300_000, "2")])
    result = Collected()
    run = StreamPreview(declared, session_for(spark, declared), bootstrap, "earliest", result.take)
    with run.running():
        run.process_all_available()
        send_orders(bootstrap, [(MINUTE, "7")])
        run.process_all_available()
    assert (result.late, [json.loads(key)["minute"] for key, _ in result.rows]) == (1, [MINUTE])


def test_violations_are_counted(spark: SparkSession, fresh_broker: Broker) -> None:
    rules = (
        Expectation("large", "total > 3", on_violation="dead letter"),
        Expectation("known", "shop = 'south'", on_violation="keep"),
    )
    declared, bootstrap = replace(stream(Stateless(), doubled), expectations=rules), fresh_broker.bootstrap
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in declared.topics()))
    send_orders(bootstrap, [(MINUTE, "1"), (MINUTE, "2"), (MINUTE, "3")])
    before = everything(bootstrap)
    result = previewed(declared, spark, bootstrap)
    assert everything(bootstrap) == before
    assert sorted(value for _, value in result.rows) == ["4.0", "6.0"]
    assert (result.dead_count, result.dead) == (1, [(b"2.0", "the row violates large: total > 3")])
    assert result.violations == {"large": 1, "known": 3}
    failing = replace(declared, expectations=(Expectation("small", "total < 5", on_violation="fail"),))
    run = StreamPreview(failing, session_for(spark, failing), bootstrap, "earliest", lambda _: None)
    with pytest.raises(Blocked, match="expectation small is violated, which fails the batch: total < 5"), run.running():
        run.wait(60)


def test_it_begins_where_it_is_told_to(spark: SparkSession, fresh_broker: Broker) -> None:
    declared, bootstrap = stream(Stateless(), doubled), fresh_broker.bootstrap
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in declared.topics()))
    send_orders(bootstrap, [(MINUTE + n * 3_600_000, str(n)) for n in range(1, 4)])
    starts: dict[PreviewStart, int] = {"earliest": 3, "newest": 3, "latest": 0, MINUTE + 3 * 3_600_000: 1}
    found = {start: previewed(declared, spark, bootstrap, start) for start in starts}
    assert {start: len(one.rows) for start, one in found.items()} == starts
    assert [one.plan.reads for one in found.values() if one.plan] == [{"orders": n} for n in starts.values()]


def test_a_topic_that_is_missing_is_named(spark: SparkSession, fresh_broker: Broker) -> None:
    declared = stream(Stateless(), doubled)
    with pytest.raises(DeclarationError, match="reads topics the broker does not have; got: orders"):
        previewed(declared, spark, fresh_broker.bootstrap)
    assert "orders" not in partition_counts(admin(fresh_broker.bootstrap), fresh_broker.bootstrap)


def fails_at_once(orders: DataFrame) -> DataFrame:
    return orders.select("shop", "minutes")


def fails_on_a_row(orders: DataFrame) -> DataFrame:
    return doubled(orders).withColumn("total", F.raise_error(F.lit("no such shop")).cast("double"))


def test_a_transform_that_fails_is_told(spark: SparkSession, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in stream(Stateless()).topics()))
    send_orders(fresh_broker.bootstrap, [(MINUTE, "1")])
    with pytest.raises(DeclarationError, match=r"transform of stream shop-totals fails; got: .*minutes.*in .*py:\d"):
        previewed(stream(Stateless(), fails_at_once), spark, fresh_broker.bootstrap)
    result = Collected()
    run = StreamPreview(stream(Stateless(), fails_on_a_row), spark, fresh_broker.bootstrap, "earliest", result.take)
    with (
        pytest.raises(PenstockError, match=r"query of stream shop-totals has failed; got: .*no such shop"),
        run.running(),
    ):
        run.wait(60)


def test_a_release_continues_with_the_state_or_says_why_not(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", str(tmp_path / "checkpoints"))
    settings.cache_clear()
    declared, bootstrap = stream(EmitFinal(window=WINDOW, grace=GRACE)), fresh_broker.bootstrap
    assert explain(declared, session_for(spark, declared)).release == "the stream has no state yet"
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in declared.topics()))
    send_orders(bootstrap, [(MINUTE, "1")])
    with running(declared, spark, bootstrap, tmp_path / "checkpoints") as run:
        run.process_all_available()
    explanation = explain(declared, session_for(spark, declared))
    assert explanation.release == "the stream continues with its state"
    assert explanation.columns == [("shop", "string"), ("minute", "bigint"), ("total", "double")]
    assert any("by shop" in line for line in explanation.state)
    other = replace(declared, transform=lambda orders: totals(orders.withColumn("amount", F.lit(1))))
    assert "would be blocked" in explain(other, session_for(spark, other)).release


def test_what_a_killed_preview_left_on_a_shared_disk_is_removed_by_a_later_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "spark://elsewhere:7077")
    settings.cache_clear()
    names = [f"{int(time.time()) - ago}-x" for ago in (60, 100_000)]
    for name in (*names, "of-an-earlier-release"):
        (tmp_path / "_previews" / name / "offsets").mkdir(parents=True)
    # Of a stream of that name.
    (tmp_path / "previews" / "offsets").mkdir(parents=True)
    with preview_folder(spark) as folder:
        Path(folder).mkdir()
        assert sorted(path.name for path in (tmp_path / "_previews").iterdir()) == sorted([names[0], Path(folder).name])
    assert [path.name for path in (tmp_path / "_previews").iterdir()] == names[:1]
    assert (tmp_path / "previews" / "offsets").exists()
    settings.cache_clear()
