"""Each kind of stream is replaced by an equal version in the middle of its input, and writes what it would have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions
from penstock.engine.session import session_for
from penstock.model.output_mode import OutputMode
from penstock.model.topic import COMMITS
from penstock.streams import (
    EmitChanges,
    EmitFinal,
    F,
    Fold,
    Input,
    KeyedState,
    Stateless,
    Stream,
    StreamJoin,
    Topic,
    TopicOutput,
)
from penstock.testing import Record, create, latest, read, running, send

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

pytestmark = pytest.mark.integration

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
BEGIN = 1_700_000_400_000
LEFT = Topic("left", partitions=2, config={"retention.ms": "-1"})
RIGHT = Topic("right", partitions=1, config={"retention.ms": "-1"})
DDL = "k STRING, n INT, at BIGINT NOT NULL"
PAIR = ("k", "n")
SUMS = Fold(
    name="sums", key=("k",), state_schema="total BIGINT",
    update_sql="SELECT k, sum(n)::BIGINT + coalesce(any_value(state.total), 0) AS total FROM records LEFT JOIN state "
    "USING (k) GROUP BY k",
    emit_sql="SELECT k, total AS n FROM folded ORDER BY k", output_schema="k STRING, n BIGINT",
)  # fmt: skip


def windows(left: DataFrame, window: Column) -> DataFrame:
    rows = left.groupBy("k", window.alias("w")).agg(F.sum("n").alias("n"))
    return rows.select(F.concat_ws("/", "k", F.unix_millis("w.start") - BEGIN).alias("k"), "n")


def tumbling(left: DataFrame) -> DataFrame:
    return windows(left, F.window("event_time", "1 minute"))


def sliding(left: DataFrame) -> DataFrame:
    return windows(left, F.window("event_time", "2 minutes", "1 minute"))


def sessions(left: DataFrame) -> DataFrame:
    return windows(left, F.session_window("event_time", "20 seconds"))


def distinct(left: DataFrame) -> DataFrame:
    return tumbling(left.dropDuplicatesWithinWatermark(["k", "n"]))


def pairs(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    on = "l.k = r.k AND r.event_time BETWEEN l.event_time AND l.event_time + INTERVAL 10 SECONDS"
    rows = left.alias("l").join(right.alias("r"), F.expr(on), how)
    key = F.concat_ws("/", "l.k", F.col("l.at") - BEGIN)
    return rows.select(key.alias("k"), F.coalesce("r.n", F.lit(-1)).alias("n"))


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    return pairs(left, right, "inner")


def outer(left: DataFrame, right: DataFrame) -> DataFrame:
    return pairs(left, right, "leftOuter")


def folded(left: DataFrame) -> DataFrame:
    return SUMS(left)


def read_from(topic: Topic) -> Input:
    return Input(topic, schema=DDL, event_time="timestamp_millis(at)", max_ahead=timedelta(0))


def stream(
    name: str, transform: Callable[..., DataFrame], mode: OutputMode, *, right: bool = False, steps: int | None = None
) -> Stream:
    inputs = {"left": read_from(LEFT), **({"right": read_from(RIGHT)} if right else {})}
    out = Topic(f"out-{name}", partitions=1, config={"retention.ms": "-1"})
    output = TopicOutput(out, key="k", value=PAIR)
    return Stream(name, "tests", inputs, transform, output, mode, steps=steps)


KINDS = [
    stream("stateless", lambda left: left.select("k", "n"), Stateless()),
    stream("final", tumbling, EmitFinal(window=MINUTE, grace=timedelta(0))),
    stream("sliding", sliding, EmitFinal(window=MINUTE, grace=10 * SECOND)),
    stream("sessions", sessions, EmitFinal(window=MINUTE, grace=timedelta(0), first_step=20 * SECOND)),
    stream("distinct", distinct, EmitFinal(window=MINUTE, grace=30 * SECOND, first_step=30 * SECOND), steps=2),
    stream("changes", tumbling, EmitChanges(window=MINUTE, grace=MINUTE)),
    stream("joined", joined, StreamJoin(within=10 * SECOND, grace=SECOND), right=True),
    stream("outer", outer, StreamJoin(within=10 * SECOND, grace=SECOND), right=True),
    stream("fold", folded, KeyedState()),
]


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    dead = [Topic(topic.dead_letters, partitions=1) for topic in (LEFT, RIGHT)]
    create(fresh_broker.bootstrap, LEFT, RIGHT, *dead, COMMITS)
    return fresh_broker.bootstrap


def records(first: int, last: int) -> list[Record]:
    """A record of each topic for every 4 seconds, with half a minute in each two in which there is none."""
    made = []
    for number in (n for n in range(first, last) if n % 30 < 22):
        at = BEGIN + number * 4_000
        for topic, n in ((LEFT.name, number), (RIGHT.name, -number)):
            if topic == LEFT.name or number % 3:
                value = {"k": "ab"[number % 2], "n": n, "at": at}
                made.append(Record(topic, None, json.dumps(value), timestamp=at))
    return made


def rows(kind: Stream, bootstrap: str, topic: str) -> object:
    """All rows; of a stream that updates them the newest of each key."""
    found = read(bootstrap, topic)
    if kind.output_mode.updates_rows or isinstance(kind.output_mode, KeyedState):
        return latest(found)
    return Counter((record.key, record.value) for record in found)


# Replaced in `make test-all`: these have rows or state of one more operator, and windows are replaced by other tests.
ELSEWHERE = ("final", "sliding", "distinct", "changes", "joined", "outer")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, id=k.name, marks=pytest.mark.long if k.name in ELSEWHERE else ()) for k in KINDS]
)
def test_an_equal_version_changes_nothing(kind: Stream, spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    out = next(iter(kind.outputs.values())).topics()[0]
    other = replace(out, name=f"{out.name}-whole")
    create(bootstrap, out, other)
    whole = replace(kind, name=f"{kind.name}-whole", output=TopicOutput(other, key="k", value=PAIR))
    send(bootstrap, records(0, 40))

    def run(one: Stream) -> None:
        with running(one, spark, bootstrap, tmp_path) as runs:
            runs.process_all_available()

    run(kind)
    before = len(read(bootstrap, out.name))
    options = ReplacementOptions(must_equal=True)
    with closing(Replacement(kind, session_for(spark, kind), bootstrap, str(tmp_path), "1" * 32, options)) as made:
        made.open()
        for _ in range(10):
            if made.advance() and made.is_ready:
                break
        send(bootstrap, records(40, 65))
        run(kind)
        made.advance()
        made.cut()
        compared = made.progress.comparison
    assert compared
    assert compared.agrees, compared
    written = len(read(bootstrap, out.name))
    run(kind)
    assert len(read(bootstrap, out.name)) == written > before, "the first batch writes nothing again"
    send(bootstrap, records(65, 90))
    run(kind)
    run(whole)
    assert rows(kind, bootstrap, out.name) == rows(kind, bootstrap, other.name)


def test_going_back_gives_a_key_without_new_records_its_row_of_before(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    kind = next(one for one in KINDS if one.name == "fold")
    doubled = replace(kind, transform=lambda left: folded(left).withColumn("n", F.col("n") * 2))
    [out] = next(iter(kind.outputs.values())).topics()
    create(bootstrap, out)

    def run(one: Stream) -> dict[str, int]:
        with running(one, spark, bootstrap, tmp_path) as runs:
            runs.process_all_available()
        return {json.loads(r.value or "")["k"]: json.loads(r.value or "")["n"] for r in read(bootstrap, out.name)}

    def replace_by(one: Stream, identity: str, *, back: bool = False) -> None:
        options = ReplacementOptions(back=back)
        with closing(Replacement(one, session_for(spark, one), bootstrap, str(tmp_path), identity, options)) as made:
            made.open()
            for _ in range(10):
                if made.advance() and made.is_ready:
                    break
            made.cut()

    send(bootstrap, records(0, 20))
    before = run(kind)
    replace_by(doubled, "1" * 32)
    assert run(doubled) == {key: 2 * n for key, n in before.items()}
    more = {"k": "a", "n": 1_000, "at": BEGIN + 80_000}
    send(bootstrap, [Record(LEFT.name, None, json.dumps(more), timestamp=BEGIN + 80_000)])
    assert run(doubled) == {"a": 2 * (before["a"] + 1_000), "b": 2 * before["b"]}
    replace_by(kind, "2" * 32, back=True)
    assert run(kind) == {"a": before["a"] + 1_000, "b": before["b"]}
