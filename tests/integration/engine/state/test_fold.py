"""Folds of real streams: their state over restarts, crashes and damage, and what is late, poison or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.query.stream_run import StreamRun
from penstock.engine.session import session_for
from penstock.engine.state import fold as folding
from penstock.engine.state.state_files import LocalStateFiles
from penstock.engine.state.state_part import PartManifest
from penstock.errors import Blocked, DeclarationError
from penstock.model.topic import COMMITS
from penstock.streams import F, Fold, Input, KeyedState, Stateless, Stream, Topic, TopicOutput
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, latest, read, rows, running, send
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

SECOND, START = 1000, 1_700_000_000_000
PAID = Topic("paid", partitions=2, config={"retention.ms": "-1"})
TOTALS = Topic("totals", partitions=1, compacted=True)
GIVEN = Input(
    PAID,
    schema="who STRING, amount BIGINT NOT NULL, at BIGINT NOT NULL",
    event_time="timestamp_millis(at)",
    late_records="keep",
)
COUNTED = {"paid": replace(GIVEN, late_records="count")}
GRACE = KeyedState(grace=timedelta(seconds=10))
SUMS = Fold(
    name="sums",
    key=("who",),
    state_schema="total BIGINT",
    # An amount of 13 fails, 0 forgets.
    update_sql="SELECT who, sum(CASE WHEN amount = 13 THEN error('thirteen') ELSE amount END)::BIGINT"
    " + coalesce(any_value(state.total), 0) AS total FROM records LEFT JOIN state USING (who)"
    " GROUP BY who HAVING min(amount) <> 0",
    emit_sql="FROM folded ORDER BY who",
    output_schema="who STRING, total BIGINT",
)


def summed(paid: DataFrame) -> DataFrame:
    return SUMS(paid.where("who IS NOT NULL"))


def unread(paid: DataFrame) -> DataFrame:
    SUMS(paid)
    return paid.select("who", F.col("amount").alias("total"))


def stream(**changes: Any) -> Stream:
    made = Stream(
        name="sums", app="tests", inputs={"paid": GIVEN}, transform=summed, shuffle_partitions=2,
        output=TopicOutput(TOTALS, key="who", value="total"), output_mode=GRACE,
    )  # fmt: skip
    return replace(made, **changes)


def paid(*given: tuple[str | None, int], at: int = 0) -> list[Record]:
    values = [json.dumps({"who": who, "amount": amount, "at": START + at * SECOND}) for who, amount in given]
    return [Record("paid", who, value, number % 2) for number, (who, value) in enumerate(zip(
        (who for who, _ in given), values, strict=True))]  # fmt: skip


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    of = stream()
    create(fresh_broker.bootstrap, *of.topics(), PAID, COMMITS)
    return fresh_broker.bootstrap


def totals(bootstrap: str) -> dict[str | None, int]:
    return {key: int(value or 0) for key, value in latest(read(bootstrap, TOTALS.name)).items()}


def versions(state: Path) -> list[int]:
    """The batches whose state is kept."""
    return sorted(int(path.stem) for path in state.glob("*.json"))


def manifests(state: Path, at: int) -> dict[str, PartManifest]:
    """The parts of the first state that is kept, or of the last."""
    return LocalStateFiles(str(state)).load_parts(versions(state)[at])


def without_commits(folder: Path, behind: int) -> None:
    """As if the driver had died behind the transaction of each batch from this one on."""
    for entry in (folder / "commits").iterdir():
        if int("".join(filter(str.isdigit, entry.name))) >= behind:
            entry.unlink()


def test_state_survives_restarts_and_crashes(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    with running(stream(), spark, bootstrap, tmp_path) as run:
        for _ in range(3):
            send(bootstrap, paid(("ann", 1), ("bob", 2), ("cy", 3), ("ann", 4)))
            run.process_all_available()
        assert run.report().state_rows == 3
    assert totals(bootstrap) == {"ann": 15, "bob": 6, "cy": 9}
    before = read(bootstrap, TOTALS.name)
    # The last batch was written and not committed: it runs again for its state, and writes nothing. On a busy machine
    # what is sent at once may be read as two batches.
    last = max(int(entry.name) for entry in (folder / "commits").glob("[0-9]*"))
    without_commits(folder, last)
    with running(stream(), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, (folder / "commits" / str(last)).exists))
        run.process_all_available()
        assert read(bootstrap, TOTALS.name) == before
        send(bootstrap, paid(("ann", 100), ("bob", 0), ("dan", 1)))
        run.process_all_available()
        send(bootstrap, paid(("bob", 5)))
        run.process_all_available()
        assert run.report().state_rows == 4
    assert totals(bootstrap) == {"ann": 115, "bob": 5, "cy": 9, "dan": 1}
    state = folder / "folds" / "sums"
    assert len(manifests(state, -1)) == 2
    assert len(versions(state)) == 4, "few versions are kept"


def test_a_batch_planned_again_takes_nothing_of_the_failed_attempt(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """A try that wrote its state and nothing else: its plan is lost, and the next one holds other records."""
    folder = tmp_path / "sums"
    with running(stream(), spark, bootstrap, tmp_path) as run:
        send(bootstrap, paid(("ann", 1)))
        run.process_all_available()
    state = folder / "folds" / "sums"
    (part,) = (part for part in state.iterdir() if part.is_dir())
    done = versions(state)[-1]
    shutil.copytree(part, state / ("1" if part.name == "0" else "0"))
    shutil.copy(state / f"{done}.json", state / f"{done + 1}.json")
    (part / f"{done + 1}-1a.json").write_text("{")
    with running(stream(), spark, bootstrap, tmp_path) as run:
        send(bootstrap, paid(("ann", 1)))
        run.process_all_available()
    assert totals(bootstrap) == {"ann": 2}


@pytest.mark.long
def test_the_last_commit_is_lost_though_the_next_batch_had_begun(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes what was not brought to the disk: the end of a batch, and of the next what was planned. The
    part has nothing of the batch before that, which held no row of it; a manifest is back whose files are gone."""

    def dies(_: Checkpoint) -> None:
        raise RuntimeError("the power is cut")

    folder = tmp_path / "sums"
    with running(stream(), spark, bootstrap, tmp_path) as run:
        for who, amount in (("ann", 1), (None, 1), ("ann", 2)):
            send(bootstrap, paid((who, amount)))
            run.process_all_available()
        send(bootstrap, paid(("ann", 4)))
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "sync", dies)
            wait_until(lambda: not run.active, what="the last batch fails")
    last = max(int(entry.name) for entry in (folder / "commits").glob("[0-9]*"))
    without_commits(folder, last)
    for entry in (folder / "offsets").glob(f"*{last + 1}*"):
        entry.unlink()
    with running(stream(), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert totals(bootstrap) == {"ann": 7}
    state = folder / "folds" / "sums"
    [(part, newest)] = manifests(state, -1).items()
    older = manifests(state, 0).get(part, PartManifest())
    for name in {file.name for file in older.files} - {file.name for file in newest.files}:
        (state / part / name).unlink()
    send(bootstrap, paid(("ann", 8)))
    with running(stream(), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert totals(bootstrap) == {"ann": 15}


def test_damaged_state_stops_the_stream(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """A file that is cut, a part that is gone, and the manifest cut and gone: one after the other."""
    with running(stream(), spark, bootstrap, tmp_path) as run:
        for _ in range(2):
            send(bootstrap, paid(("ann", 1), ("bob", 2)))
            run.process_all_available()
    folder = tmp_path / "sums"
    state = folder / "folds" / "sums"
    part, newest = next(iter(manifests(state, -1).items()))
    file, manifest = state / part / newest.files[0].name, state / f"{versions(state)[-1]}.json"
    shutil.copytree(folder, tmp_path / "copy")
    damages: tuple[Callable[[], object], ...] = (
        lambda: file.write_bytes(file.read_bytes()[:-1]),
        lambda: shutil.rmtree(state / part),
        lambda: manifest.write_text("{}\n1\n"),
        manifest.unlink,
    )
    for damage in damages:
        damage()
        with pytest.raises(Blocked, match="state of fold sums"), running(stream(), spark, bootstrap, tmp_path):
            pass
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copy", folder)


def test_late_records_are_counted_and_kept(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    with running(stream(), spark, bootstrap, tmp_path) as run:
        for at in (20, 30, 40):
            send(bootstrap, paid(("ann", 1), at=at))
            run.process_all_available()
    # A running stream may read what is sent at once as two batches, and the watermark of the second is later.
    send(bootstrap, [*paid(("ann", 10), at=20), *paid(("bob", 10), at=21)])
    with running(stream(), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert run.figures.late == 1
    assert totals(bootstrap) == {"ann": 3, "bob": 10}
    (kept,) = read(bootstrap, "sums-late")
    assert json.loads(kept.value or "")["amount"] == 10
    assert dict(kept.headers)["penstock.late-ms"] == "0"


def test_a_record_that_a_fold_fails_on_is_put_aside(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, paid(("ann", 1)))
    with running(stream(), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        send(bootstrap, paid(("ann", 2), ("bob", 13), ("bob", 4)))
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.dead == 1), what="the record is put aside")
        run.process_all_available()
    assert totals(bootstrap) == {"ann": 3, "bob": 4}
    (letter,) = read(bootstrap, "paid-dead-letter")
    assert "thirteen" in dict(letter.headers)["penstock.reason"]


# Tells of who was silent for ten seconds.
SILENT = Fold(
    name="silent",
    key=("who",),
    state_schema="total BIGINT, due BIGINT",
    update_sql="SELECT who, coalesce(r.total, 0) + coalesce(state.total, 0) AS total, r.latest + 10000 AS due, "
    "r.latest IS NULL AS silent FROM ("
    "SELECT who, sum(amount)::BIGINT AS total, max(records.at) AS latest FROM records GROUP BY who) r "
    "FULL JOIN state USING (who)",
    emit_sql="SELECT who, total FROM folded WHERE silent",
    output_schema="who STRING, total BIGINT",
    timer_field="due",
)


def silent(paid: DataFrame) -> DataFrame:
    return SILENT(paid.where("who IS NOT NULL"))


@pytest.mark.long
def test_keys_are_due_by_the_clock_though_nobody_sends(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    of = stream(transform=silent, output_mode=KeyedState(tick=timedelta(seconds=1)), inputs=COUNTED)
    clock = [0.0]
    beater = HeartbeatSender(catalog.build([of]).heartbeat_topics(), None, bootstrap, clock=lambda: clock[0])

    def beat(run: StreamRun, *seconds: int) -> None:
        for at in seconds:
            clock[0] = START / 1000 + at
            beater.run_once()
            run.process_all_available()

    with closing(beater):
        with running(of, spark, bootstrap, tmp_path) as run:
            send(bootstrap, [*paid(("ann", 1), ("bob", 2)), *paid(("cy", 3), at=5)])
            run.process_all_available()
            beat(run, 8)
            before = files_of(tmp_path)
            # Where nothing is due nothing is written.
            beat(run, 9)
            assert not totals(bootstrap)
            assert files_of(tmp_path) == before
            beat(run, 10)
            assert totals(bootstrap) == {"ann": 1, "bob": 2}
            assert run.report().state_rows == 3
        # It was written, and not committed: it runs again, and tells nobody twice.
        commits = tmp_path / "sums" / "commits"
        last = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit())
        without_commits(tmp_path / "sums", last)
        with running(of, spark, bootstrap, tmp_path) as run:
            beat(run, 15, 16, 17)
            send(bootstrap, paid(("ann", 10), at=17))
            beat(run, 26, 27, 28)
    told = [(r.key, r.value) for r in read(bootstrap, TOTALS.name)]
    assert sorted(told[:2]) == [("ann", "1"), ("bob", "2")]
    assert told[2:] == [("cy", "3"), ("ann", "11")]


def files_of(folder: Path) -> set[str]:
    state = folder / "sums" / "folds" / "silent"
    return {file.name for manifest in manifests(state, -1).values() for file in manifest.files}


def test_a_task_without_its_part_number_fails(spark: SparkSession, tmp_path: Path) -> None:
    given = spark.range(100).selectExpr("concat('k', id) AS who", "id AS amount", "id AS at", "now() AS event_time")
    sent = folding.partition_by_key(SILENT, given).coalesce(1)
    step = folding.FoldTask(
        SILENT,
        LocalStateFiles(str(tmp_path)),
        late=False,
        records=to_arrow_schema(sent.schema, timezone="UTC"),
        parts=2,
    )
    with pytest.raises(Exception, match="does not say which part a task has"):
        sent.mapInArrow(step, "who STRING, total BIGINT").collect()


def test_a_change_of_what_a_fold_keeps_changes_the_fingerprint(spark: SparkSession) -> None:
    def lines(of: Stream) -> list[str]:
        own = session_for(spark, of)
        with folding.use_checkpoint(of, "/nowhere") as place:
            found = plan_fingerprint.build_frame(own, of, "127.0.0.1:1", {})
        return plan_fingerprint.fingerprint_lines(of, found, place)

    def other(paid: DataFrame) -> DataFrame:
        return replace(SUMS, state_schema="total DOUBLE", output_schema="who STRING, total DOUBLE")(paid)

    def renamed(paid: DataFrame) -> DataFrame:
        return replace(SUMS, emit_sql="FROM folded")(paid)

    def numbered(paid: DataFrame) -> DataFrame:
        return replace(SUMS, output_schema="who BIGINT, total BIGINT")(paid)

    known = lines(stream())
    assert known == ["fold sums in 2 parts by who: total: bigint", "key of fold sums: who: string"]
    by_number = {"paid": replace(GIVEN, schema=GIVEN.schema.replace("who STRING", "who BIGINT"))}
    assert lines(stream(transform=numbered, inputs=by_number)) == [known[0], "key of fold sums: who: bigint"]
    assert lines(stream(transform=other)) != known
    assert lines(stream(shuffle_partitions=3)) != known
    assert lines(stream(transform=renamed)) == known


def test_folds_that_the_stream_cannot_run_are_refused(spark: SparkSession) -> None:
    def refused(of: Stream) -> str:
        with pytest.raises(DeclarationError) as told:
            plan_fingerprint.build_frame(session_for(spark, of), of, "127.0.0.1:1", {})
        return str(told.value)

    assert "nothing advances time" in refused(stream(transform=silent, output_mode=KeyedState(), inputs=COUNTED))
    assert "folds" in refused(stream(output_mode=Stateless(), inputs=COUNTED))
    assert "does not fold" in refused(stream(transform=lambda paid: paid.select("who", F.lit(1).alias("total"))))
    assert "lacks columns" in refused(stream(transform=lambda paid: SUMS(paid.select("who", "amount"))))
    assert "twice" in refused(stream(transform=lambda paid: SUMS(paid).unionByName(SUMS(paid))))
    assert "they are read 2 times" in refused(stream(transform=lambda paid: (once := SUMS(paid)).unionAll(once)))
    assert "nobody reads the rows of fold sums" in refused(stream(transform=unread))
    assert "has a tick, and neither" in refused(stream(output_mode=replace(GRACE, tick=timedelta(seconds=1))))


def test_a_fold_runs_on_rows_without_a_stream(spark: SparkSession) -> None:
    """A test, or an archive, has no history."""

    def by(fold: Fold) -> Stream:
        def transform(paid: DataFrame) -> DataFrame:
            return fold(paid)

        return stream(transform=transform)

    given: list[dict[str, Any]] = [{"who": "ann", "amount": n, "at": START} for n in (1, 2)]
    assert rows(spark, stream(), paid=given) == [{"who": "ann", "total": 3}]
    with pytest.raises(Exception, match="rows without their key"):
        rows(spark, by(SUMS), paid=[{"who": None, "amount": 1, "at": START}])
    broken = replace(SUMS, update_sql="SELECT who, nothing AS total FROM records")
    with pytest.raises(DeclarationError, match="the update query of fold sums is refused by DuckDB"):
        rows(spark, by(broken), paid=given)
    with pytest.raises(DeclarationError, match="the condition of expiry of fold sums is refused by DuckDB"):
        rows(spark, by(replace(SUMS, expires_when="totals < 0")), paid=given)
    twice = replace(SUMS, update_sql="SELECT who, amount AS total FROM records")
    with pytest.raises(Exception, match="gives a key twice"):
        rows(spark, by(twice), paid=given)
