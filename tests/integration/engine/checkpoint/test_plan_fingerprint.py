"""State that other code made is not taken for this code's: neither at a start nor by a release."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.control import Actor, ProgressRow, connect
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.checkpoint.plan_fingerprint import PlanFingerprint
from penstock.engine.jvm import bridge
from penstock.engine.query.stream_run import StreamRun
from penstock.engine.session import session_for
from penstock.engine.state import fold
from penstock.errors import Blocked, ReleaseRefused
from penstock.settings import PROJECT, settings
from penstock.streams import EmitChanges, F, Input, Stream, Topic, TopicOutput
from penstock.supervision import release
from penstock.tables import topic_reader
from penstock.testing import Record, create, read, running, send
from tests.chaos.projects import other_project
from tests.support.caches import clear_caches, unload_jobs
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

SALES, TOTALS = Topic("plan-sales", partitions=1), Topic("plan-totals", partitions=1, compacted=True)
SALE = "shop STRING NOT NULL, amount DOUBLE NOT NULL, at TIMESTAMP NOT NULL"
MINUTE = timedelta(minutes=1)
Transform = Callable[..., Any]


def by_shop(length: str, *values: str) -> Transform:
    def transform(sales: DataFrame) -> DataFrame:
        windows = sales.groupBy("shop", F.window("event_time", length).alias("w"))
        return windows.agg(*(F.expr(value).alias(f"v{n}") for n, value in enumerate(values))).withColumnRenamed(
            "v0", "total"
        )

    return transform


def stream(transform: Transform, window: timedelta = MINUTE, **changed: Any) -> Stream:
    given = {"grace": MINUTE, "schema": SALE, "share": (1, 1), **changed}
    return Stream(
        name="plan-totals", app="plans",
        inputs={"sales": Input(SALES, schema=given["schema"], event_time="at", share=given["share"])},
        transform=transform, output=TopicOutput(TOTALS, key="shop", value="total"),
        output_mode=EmitChanges(window=window, grace=given["grace"]),
    )  # fmt: skip


def kept(spark: SparkSession, of: Stream) -> list[str]:
    return plan_fingerprint.fingerprint_lines(
        of, plan_fingerprint.build_frame(session_for(spark, of), of, "127.0.0.1:1", {})
    )


SUM = stream(by_shop("1 minute", "sum(amount)"))


@pytest.mark.parametrize(
    "other",
    [
        stream(by_shop("1 minute", "max(amount)")),
        stream(by_shop("2 minutes", "sum(amount)"), 2 * MINUTE),
        stream(by_shop("1 minute", "sum(amount)", "count(*)")),
        stream(by_shop("1 minute", "sum(amount)"), schema=SALE.replace("amount DOUBLE", "amount BIGINT")),
        stream(lambda sales: by_shop("1 minute", "sum(amount)")(sales.withColumn("shop", F.length("shop")))),
        # It would go on behind records that another had, and may not have written.
        stream(by_shop("1 minute", "sum(amount)"), share=(1, 2)),
    ],
)
def test_a_change_of_what_state_holds_changes_the_fingerprint(spark: SparkSession, other: Stream) -> None:
    assert kept(spark, other) != kept(spark, SUM)


@pytest.mark.parametrize(
    "other",
    [
        SUM,
        stream(by_shop("60 seconds", "sum(amount) + 1")),
        stream(by_shop("1 minute", "sum(amount)"), grace=2 * MINUTE),
        stream(by_shop("1 minute", "sum(amount)"), schema=f"{SALE}, note STRING"),
        stream(lambda sales: by_shop("1 minute", "sum(amount)")(sales.where("amount > 0"))),
    ],
)
def test_a_change_before_or_behind_the_state_keeps_the_fingerprint(spark: SparkSession, other: Stream) -> None:
    assert kept(spark, other) == kept(spark, SUM)


@pytest.mark.parametrize("project", [pytest.param(PROJECT, marks=pytest.mark.long), PROJECT / "tests" / "examples"])
def test_every_stream_has_the_same_fingerprint_twice(spark: SparkSession, project: Path) -> None:
    with other_project(project, {}):
        for name, of in catalog.load().streams.items():
            own = session_for(spark, of)
            empty = {n: own.createDataFrame([], topic_reader.table_ddl(t.fields)) for n, t in of.tables.items()}
            found = []
            for _ in range(2):
                with fold.use_checkpoint(of, "/checkpoints") as place:
                    rows = plan_fingerprint.build_frame(own, of, "127.0.0.1:1", empty)
                found.append(plan_fingerprint.fingerprint_lines(of, rows, place))
            one, two = found
            assert one == two
            assert bool(one) == bool(of.stateful_steps), name
            assert not any("#" in line for line in one)


def test_a_fingerprint_without_the_types_of_keys_is_compared_by_their_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As 0.2 left it."""
    plan, of = PlanFingerprint(spark, "sums", str(tmp_path)), "fold sums in 2 parts by"
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    plan.store([f"{of} who: total: bigint"])
    now = [f"{of} who: total: bigint", "key of fold sums: who: bigint"]
    plan.check(now)
    with pytest.raises(Blocked, match=rf"was {of} who: total: bigint; is {of} whom: total: bigint; hint"):
        plan.check([f"{of} whom: total: bigint", "key of fold sums: whom: bigint"])
    plan.store(now)
    with pytest.raises(Blocked, match="was key of fold sums: who: bigint; is key of fold sums: who: string"):
        plan.check([now[0], "key of fold sums: who: string"])


@pytest.mark.long
def test_a_changed_aggregate_is_blocked_until_it_is_accepted(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    at = fresh_broker.bootstrap
    create(at, *SUM.topics())

    def sell(amount: float) -> None:
        value = json.dumps({"shop": "a", "amount": amount, "at": "2026-01-01T00:00:01Z"})
        send(at, [Record(SALES.name, None, value)])

    sell(2.0)
    with running(SUM, spark, at, tmp_path) as run:
        run.process_all_available()
    sell(5.0)
    other = replace(SUM, transform=by_shop("1 minute", "max(amount)"))
    blocked = StreamRun(other, spark, at, str(tmp_path), ProgressRow("plan-totals", "plans", "i"))
    wait_until(lambda: tended(blocked.reconcile, lambda: blocked.report().state == "blocked"))
    said = blocked.report().error or ""
    assert blocked.offsets == {SALES.name: {0: 1}}, "what waits is known before the first batch"
    blocked.stop()
    assert "was step 1, Aggregate: sum(amount): double; is step 1, Aggregate: max(amount): double" in said
    assert "penstock streams release plan-totals --accept-state" in said
    with running(SUM, spark, at, tmp_path) as run:
        run.process_all_available()
    assert [float(r.value or 0) for r in read(at, TOTALS.name)] == [2.0, 7.0], "the old code goes on"
    plan = PlanFingerprint(session_for(spark, other), "plan-totals", f"{tmp_path}/plan-totals")
    waiting = tmp_path / "plan-totals.reset" / "penstock-reset.json"
    waiting.parent.mkdir()
    waiting.touch()
    plan.check(kept(spark, other))
    shutil.rmtree(waiting.parent)
    with pytest.raises(Blocked):
        plan.check(kept(spark, other))
    plan.accept(kept(spark, other))
    sell(6.0)
    with running(other, spark, at, tmp_path) as run:
        run.process_all_available()
    with running(other, spark, at, tmp_path) as run:
        run.process_all_available()
    assert [float(r.value or 0) for r in read(at, TOTALS.name)][2:] == [7.0]


APP = """
from datetime import timedelta
from penstock.streams import F, Input, Stream, Topic, TopicOutput, EmitChanges

def counted(length, value):
    def transform(sales):
        windows = sales.groupBy("shop", F.window("event_time", length).alias("w"))
        return windows.agg(F.expr(value).alias("value"))
    return transform

def stream(name, minutes, value):
    return Stream(
        name, "shop", {{"sales": Input(Topic("in"), schema="{schema}", event_time="at")}},
        counted(f"{{minutes}} minutes", value), TopicOutput(Topic(name, compacted=True), key="shop", value="value"),
        EmitChanges(window=timedelta(minutes=minutes), grace=timedelta(minutes=1)))

STREAMS = [{streams}]
"""


PLANS = ("penstock.engine.checkpoint.plan_fingerprint", "shop")


def accepts_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks with options read the plans in this process: their command starts a JVM like that of the others."""
    run_check = release._run_check

    def run_check_here(command: Sequence[str], timeout: float, project: Path) -> dict[str, Any]:
        if len(command) == 2:
            return run_check(command, timeout, project)
        clear_caches()
        unload_jobs()
        with monkeypatch.context() as here:
            here.setattr(sys, "argv", [*command])
            return plan_fingerprint.main()

    monkeypatch.setattr(release, "_run_check", run_check_here)
    monkeypatch.setattr(plan_fingerprint, "open_session", lambda _: spark)
    monkeypatch.setattr(bridge, "stop_jvm", lambda _: 0)


def test_a_release_incompatible_with_the_state_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams of one app: only those are named whose state would be misread, or which fail."""
    file = tmp_path / "jobs" / "shop" / "sales.py"
    file.parent.mkdir(parents=True)

    def write(*streams: str) -> None:
        file.write_text(APP.format(schema=SALE, streams=", ".join(f"stream({one})" for one in streams)))

    write("'sums', 1, 'sum(amount)'", "'counts', 1, 'count(*)'", "'kept', 1, 'sum(amount)'")
    url = f"sqlite:///{tmp_path}/control.db"
    with other_project(tmp_path, {"PENSTOCK_CONTROL_URL": url, "PENSTOCK_HOME": tmp_path}):
        control = connect()
        control.migrate()
        control.sync(catalog.load())
        checkpoints = Path(settings().checkpoint_root)
        for name, of in catalog.load().streams.items():
            PlanFingerprint(session_for(spark, of), name, str(checkpoints / name)).store(kept(spark, of))
            (checkpoints / name / "commits").mkdir()
            (checkpoints / name / "commits" / "0").write_text("v1\n{}")
        changed = ("'sums', 1, 'max(amount)'", "'counts', 2, 'count(*)'", "'kept', 1, 'sum(amount)'")
        write(*changed, "'wrong', 1, 'summ(amount)'")
        me = Actor("me", "cli")
        with pytest.raises(ReleaseRefused) as refused:
            release.release(control, "shop", me)
        said = str(refused.value)
        row = control.app("shop")
        assert row is not None
        assert row.release_seq == 0
        assert (said.count("has state of other code"), "stream kept" in said) == (2, False)
        assert "was step 1, Aggregate: sum(amount): double; is step 1, Aggregate: max(amount): double" in said
        assert "stream counts has state of other code" in said
        assert "was windows of 0:01:00 every 0:01:00 from 0:00:00; is windows of 0:02:00 every 0:02:00 from" in said
        for choice in (
            "take the old code back", "give the stream a new name", "`penstock streams reset sums --to TIME`",
            "`--to earliest`", "`penstock streams replace counts`, one stream at a time",
            "`penstock streams release counts --accept-state`", "penstock backfill list",
        ):  # fmt: skip
            assert choice in said
        assert "the transform of stream wrong fails; got: AnalysisException: [UNRESOLVED_ROUTINE]" in said
        line = 1 + file.read_text().splitlines().index('        return windows.agg(F.expr(value).alias("value"))')
        assert f"hint: mend it in {file}:{line}" in said
        write(*changed)
        accepts_here(spark, monkeypatch)
        [why_not] = release._run_check((*PLANS, "--except", "sums"), 60, tmp_path)["refused"]
        assert "stream counts has state of other code" in why_not
        assert release.release(control, "shop", me, accept_state=True) == 1
        taken = {path.parent.name for path in checkpoints.glob("*/plan-accepted.json")}
        assert taken == {"sums", "counts"}
        control.engine.dispose()
