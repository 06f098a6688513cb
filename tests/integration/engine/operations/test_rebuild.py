"""A fold's stream whose checkpoint is lost, or of another version: it goes on with what its output holds."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from jobs.presence import BASE_COUNTS, ENRICHED_WALK_INS, WALK_IN_COUNTS
from penstock import logs
from penstock.catalog import build
from penstock.cli import app
from penstock.codec.arrow_files import read_mapped
from penstock.control import Actor, connect
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import RESET_FILE, Checkpoint
from penstock.engine.operations import rebuild
from penstock.engine.operations.rebuild import RebuildResult
from penstock.engine.operations.reset import Reset
from penstock.engine.session import session_for
from penstock.engine.state.state_files import LocalStateFiles
from penstock.errors import Blocked, PenstockError
from penstock.model.topic import COMMITS
from penstock.streams import F, Stream, Topic
from penstock.testing import Record, create, latest, read, running, send
from tests.support import presence_model as model
from tests.support.caches import clear_caches
from tests.support.sql_streams import project_fold, project_stream

pytestmark = pytest.mark.integration

STREAM, COUNTS = project_stream("walk-in-counts"), project_fold("walk-in-counts")
START = 1_700_000_000_000
Row = dict[str, Any]


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, *STREAM.topics(), COMMITS)
    return fresh_broker.bootstrap


def walks(chance: random.Random, count: int, begin: int = 0) -> list[Row]:
    return [
        {
            "device": f"d{chance.randrange(4)}",
            "business": chance.choice("12"),
            "contact": f"c-{chance.randrange(20)}",
            "since": START,
            "timestamp": START + begin + chance.randrange(100),
        }
        for _ in range(count)
    ]


def bases(chance: random.Random, count: int, begin: int = 0) -> list[Row]:
    return [
        {
            "business": chance.choice("12"),
            "contact": f"c-{chance.randrange(25)}",
            "count": chance.randrange(9),
            "as_of": START + begin + chance.randrange(100),
        }
        for _ in range(count)
    ]


def records(of: Topic, rows: Sequence[Mapping[str, Any]]) -> list[Record]:
    return [Record(of.name, None, json.dumps(row), number % 4) for number, row in enumerate(rows)]


def counts(bootstrap: str) -> dict[tuple[str, str], int]:
    found = (json.loads(value) for value in latest(read(bootstrap, WALK_IN_COUNTS.name)).values() if value)
    return {(row["business"], row["contact"]): row["count"] for row in found if "heartbeat" not in row}


def rebuilt(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> RebuildResult:
    return rebuild.rebuild(stream, session_for(spark, stream), bootstrap, str(folder), lambda: None)


def kept(folder: Path, fold: str = "counts") -> list[Row]:
    """The state in a checkpoint: each key with its part and hash."""
    found = []
    state = folder / "folds" / fold
    last = max(int(path.stem) for path in state.glob("*.json"))
    for part, now in LocalStateFiles(str(state)).load_parts(last).items():
        tables = (read_mapped(state / part / file.name) for file in now.files)
        newest = {(row["_hash"], row["business"], row["contact"]): row for t in tables for row in t.to_pylist()}
        assert len(newest) == now.keys
        found += [{**row, "part": part} for row in newest.values()]
    return sorted(found, key=lambda row: row["_hash"])


@pytest.mark.long
def test_counts_go_on_from_a_rebuilt_checkpoint(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    walked, told = walks(chance, 200), bases(chance, 20, 30)
    folder, waiting = tmp_path / STREAM.name, tmp_path / f"{STREAM.name}.reset"
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        for n in range(2):
            send(bootstrap, records(ENRICHED_WALK_INS, walked[n::2]))
            send(bootstrap, records(BASE_COUNTS, told[n::2]))
            run.process_all_available()
    state, before = kept(folder), counts(bootstrap)
    assert before == model.counts(walked, told)
    # What lies in the topics now is neither read again nor passed over.
    later = walks(chance, 100, 50)
    send(bootstrap, records(ENRICHED_WALK_INS, later))
    shutil.move(folder, tmp_path / "away")
    command = f"penstock streams rebuild {STREAM.name}"
    with pytest.raises(Blocked, match=command), running(STREAM, spark, bootstrap, tmp_path):
        pass

    def dying(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rebuild, "move_durably", dying)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        rebuilt(STREAM, spark, bootstrap, tmp_path)
    monkeypatch.undo()
    assert not waiting.exists()
    with pytest.raises(Blocked, match="is not there"), running(STREAM, spark, bootstrap, tmp_path):
        pass
    made = rebuilt(STREAM, spark, bootstrap, tmp_path)
    assert (made.before, made.after.keys) == (None, len(before))
    # A reset takes its place; and a second rebuild does no harm, as long as the stream was not started.
    Checkpoint(spark, str(tmp_path), STREAM.name).request_reset(Reset({}).text())
    assert sorted(path.name for path in waiting.glob("[!.]*")) == [RESET_FILE]
    with pytest.raises(PenstockError, match="was reset"):
        rebuilt(STREAM, spark, bootstrap, tmp_path)
    shutil.rmtree(waiting)
    assert rebuilt(STREAM, spark, bootstrap, tmp_path).after == made.after
    assert sum(made.ends[ENRICHED_WALK_INS.name].values()) == 200
    assert kept(waiting) == state
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert counts(bootstrap) == model.counts(walked + later, told)
        # Newer and older bases, and walk-ins that were counted before.
        more, newer = walks(chance, 100, 90), bases(chance, 20, 70) + bases(chance, 10, -50)
        send(bootstrap, records(ENRICHED_WALK_INS, [*more, *chance.sample(walked, 100)]))
        send(bootstrap, records(BASE_COUNTS, newer))
        run.process_all_available()
        assert run.report().state_rows == len(counts(bootstrap))
    assert counts(bootstrap) == model.counts(walked + later + more, told + newer)
    # It goes on as any other: a crash takes the last batch back.
    last = max((folder / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    written = read(bootstrap, WALK_IN_COUNTS.name)
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, records(ENRICHED_WALK_INS, walked[:50]))
        run.process_all_available()
    assert read(bootstrap, WALK_IN_COUNTS.name) == written


# Of the count too, so that its state is another.
WIDER = replace(
    COUNTS,
    state_schema=f"{COUNTS.state_schema}, n BIGINT",
    update_sql=f"SELECT *, coalesce(base, 0) + coalesce(len(walks), 0) AS n FROM ({COUNTS.update_sql})",
    restore_sql="SELECT *, count AS n FROM output WHERE count > 0",
)


def widened(enriched_walk_ins: DataFrame, base_counts: DataFrame) -> DataFrame:
    none = F.lit(None).cast
    counted = ("business", "contact", "device", "timestamp")
    each = enriched_walk_ins.select(*counted, none("bigint").alias("count"), "event_time")
    base = ("business", "contact", "NULL AS device", "as_of AS timestamp", "count", "event_time")
    known = base_counts.selectExpr(*base)
    return WIDER(each.unionByName(known))


def test_the_command_rebuilds_the_state_of_another_version_and_names_an_unreadable_record(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(STREAM, transform=widened)
    catalog = build([other])
    monkeypatch.setattr("penstock.catalog.partial_catalog", cache(lambda: (catalog, [])))
    monkeypatch.setattr(logs, "setup", lambda _: None)
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/control.db")
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", str(tmp_path))
    clear_caches()
    control = connect()
    command = ["streams", "rebuild", STREAM.name]
    try:
        control.migrate()
        control.sync(catalog)
        chance = random.Random(2)
        walked, told = walks(chance, 100), bases(chance, 20, 30)
        send(bootstrap, [*records(ENRICHED_WALK_INS, walked), *records(BASE_COUNTS, told)])
        assert "its desired state is on" in CliRunner().invoke(app, command).output
        control.set_desired([STREAM.name], "off", Actor("ann", "cli"))
        assert "has written nothing" in CliRunner().invoke(app, command).output
        with running(STREAM, spark, bootstrap, tmp_path) as run:
            run.process_all_available()
        with pytest.raises(Blocked, match=" ".join(command[1:])), running(other, spark, bootstrap, tmp_path):
            pass
        key = '{"business":"1","contact":"c-0"}'
        send(bootstrap, [Record(WALK_IN_COUNTS.name, key, '{"business":"1","contact":"c-0","count":"x"}', 3)])
        said = CliRunner().invoke(app, command).output
        assert f"{WALK_IN_COUNTS.name}[3]@" in said
        assert 'column count of its value is no bigint: "x"' in said
        send(bootstrap, [Record(WALK_IN_COUNTS.name, key, None, 3)])
        was = {pair: n for pair, n in counts(bootstrap).items() if pair != ("1", "c-0")}
        done = CliRunner().invoke(app, [*command, "-m", "wider"])
        assert done.exit_code == 0, done.output
        lines = [line.split() for line in done.output.splitlines()]
        assert ["rebuilt", str(sum(n > 0 for n in was.values()))] in [line[:2] for line in lines]
        assert ["before", str(len(model.counts(walked, told)))] in [line[:2] for line in lines]
        assert control.actions(1)[0]["verb"] == "rebuild"
        more = [row for row in walks(chance, 50, 90) if (row["business"], row["contact"]) != ("1", "c-0")]
        send(bootstrap, records(ENRICHED_WALK_INS, more))
        with running(other, spark, bootstrap, tmp_path) as run:
            run.process_all_available()
        wanted = model.counts(walked + more, told)
        assert {pair: n for pair, n in counts(bootstrap).items() if pair != ("1", "c-0")} == {
            pair: n for pair, n in wanted.items() if pair != ("1", "c-0")
        }
    finally:
        control.engine.dispose()
        clear_caches()
