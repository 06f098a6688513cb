"""Operators that run a command of Penstock: what they ask for, and how they end."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import catalog
from penstock.control import Control
from penstock.settings import PROJECT

pytestmark = pytest.mark.usefixtures("airflow_home")


def test_every_backfill_that_runs_has_its_dag(parsed: dict[str, Any]) -> None:
    found = catalog.load(PROJECT)
    runs = {f"backfill_{name}": one for name, one in found.backfills.items() if one.runnable}
    assert runs.keys() == {name for name in parsed["dags"] if name.startswith("backfill_")}
    for name, one in runs.items():
        dag = parsed["dags"][name]
        # Airflow's own backfill takes schedules with data intervals only.
        assert dag["schedule"] == ("EachInterval" if one.scheduled else "OnDemandIntervals")
        assert (dag["active"], dag["catchup"], dag["paused"]) == (1, False, False)
        assert dag["params"].keys() >= {"source", "begin", "end", "target", "rate", "dry_run"}
        wanted = sorted(found.archives) if one.copies_records else [one.reads[0].name]
        assert dag["params"]["source"]["enum"] == wanted
        assert one.target_topic in dag["doc"]


def test_streams_that_can_be_rebuilt(parsed: dict[str, Any]) -> None:
    assert "walk-in-counts" in parsed["dags"]["rebuild_streams"]["params"]["stream"]["enum"]


FORM = {
    "source": "receipts-archive", "begin": None, "end": None, "target": "replayed", "rate": 7, "dry_run": True,
    "timestamps": "now", "unclosed": False, "again": False,
}  # fmt: skip
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def asked(**form: Any) -> Any:
    ti = SimpleNamespace(dag_id="backfill_replay", run_id="r1", task_id="run", try_number=1)
    run = SimpleNamespace(
        run_id="r1", triggering_user_name="olga", clear_number=0, data_interval_start=DAY,
        data_interval_end=DAY + timedelta(days=1),
    )  # fmt: skip
    return {"ti": ti, "params": {**FORM, **form}, "dag_run": run}


def test_a_backfill_runs_over_its_data_interval_or_that_of_the_form() -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from penstock.airflow.commands import RunBackfill

    one = RunBackfill(task_id="run", backfill="replay", full_history=False)
    said = " ".join(one.options(asked()))
    assert said.startswith(
        "--to 2026-01-02T00:00:00 --target replayed --source receipts-archive --rate 7 --timestamps now"
    )
    assert "--owner backfill_replay/r1/run/1 --request " in said
    assert said.endswith("--from 2026-01-01T00:00:00 --dry-run")
    # As the form's field gives it, in any zone.
    said = " ".join(one.options(asked(begin="2026-01-01T10:30:00+02:00", end="2026-01-01T12:00:00Z", dry_run=False)))
    assert "--to 2026-01-01T12:00:00" in said
    assert said.endswith("--from 2026-01-01T08:30:00")
    assert "--from 0999-01-01T00:00:00" in " ".join(one.options(asked(begin="0999-01-01T00:00:00Z")))
    without = asked()
    without["dag_run"].data_interval_start = without["dag_run"].data_interval_end = None
    with pytest.raises(AirflowFailException, match="give begin and end"):
        one.options(without)
    whole = RunBackfill(task_id="run", backfill="base-counts", full_history=True)
    assert "--from" not in whole.options(asked())


def test_a_retry_continues_what_is_written_again_and_a_cleared_run_begins_anew() -> None:
    """Airflow's backfill clears the days that have a run."""
    from penstock.airflow.commands import RunBackfill

    one = RunBackfill(task_id="run", backfill="replay", full_history=False)

    def request(try_number: int, cleared: int) -> str:
        context = asked(again=True)
        context["ti"].try_number, context["dag_run"].clear_number = try_number, cleared
        options = one.options(context)
        return options[options.index("--request") + 1]

    assert request(1, 0) == request(2, 0)
    assert request(3, 1) == request(4, 1) != request(2, 0)


def test_a_backfill_that_a_user_starts_is_recorded_once(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.airflow.commands import RunBackfill

    monkeypatch.setattr("penstock.control.connect", lambda: control)
    monkeypatch.setattr(RunBackfill, "run_command", lambda _, words: " ".join(words))
    one = RunBackfill(task_id="run", backfill="replay", full_history=False)
    scheduled = asked(dry_run=False)
    scheduled["dag_run"].triggering_user_name = None
    for context in (scheduled, asked(dry_run=True)):
        one.execute(context)
    assert control.actions() == []
    for _ in range(2):  # two tries
        one.execute(asked(dry_run=False))
    [action] = control.actions()
    assert [action[name] for name in ("actor", "source", "verb", "target")] == ["olga", "airflow", "backfill", "replay"]
    assert action["detail"] == "2026-01-01T00:00:00..2026-01-02T00:00:00 -> replayed (run r1)"


def test_only_a_person_starts_a_backfill_and_a_range_has_its_days() -> None:
    import pendulum
    from airflow.timetables.base import DataInterval, TimeRestriction

    from penstock.airflow.timetables import OnDemandIntervals

    one = OnDemandIntervals.deserialize(OnDemandIntervals("0 0 * * *", timezone="UTC").serialize())
    assert (one.summary, "0 0" in one.description) == ("when triggered", True)
    first, last = (pendulum.datetime(2026, 1, day) for day in (1, 3))
    never, all_of = TimeRestriction(first, None, catchup=False), TimeRestriction(first, last, catchup=True)
    known = DataInterval(first, last)
    for before in (None, known):
        assert one.next_dagrun_info(last_automated_data_interval=before, restriction=never) is None
    days = []
    before = None
    while info := one.next_dagrun_info(last_automated_data_interval=before, restriction=all_of):
        before = info.data_interval
        assert before
        days.append(before.start.day)
    assert days == [1, 2, 3]
    asked = one.infer_manual_data_interval(run_after=last.add(hours=5))
    assert (asked.start, asked.end) == (last.subtract(days=1), last)


def test_a_scheduled_backfill_leaves_out_no_interval() -> None:
    import pendulum
    from airflow.serialization.decoders import decode_timetable
    from airflow.serialization.encoders import encode_timetable
    from airflow.timetables.base import DataInterval, TimeRestriction

    from penstock.airflow.dags.backfills import make_dag

    scheduled = replace(catalog.load(PROJECT).backfills["replay"], scheduled=True)
    made: Any = make_dag(scheduled, ["receipts-archive"]).timetable
    timetable = decode_timetable(encode_timetable(made))
    restriction = TimeRestriction(pendulum.datetime(1970, 1, 1), None, catchup=False)

    def next_interval(last: DataInterval | None) -> DataInterval:
        info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        assert info
        assert info.data_interval
        return info.data_interval

    today = pendulum.today("UTC")
    # The DAG was paused, or Airflow down, for three days.
    ended = DataInterval(today.subtract(days=4), today.subtract(days=3))
    assert next_interval(ended) == DataInterval(today.subtract(days=3), today.subtract(days=2))
    assert next_interval(None).start >= today.subtract(days=2), "the first run is not that of 1970"


def test_a_refused_backfill_is_not_retried() -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from penstock.airflow.commands import RunBackfill

    one = RunBackfill(task_id="run", backfill="replay", full_history=False)
    with pytest.raises(AirflowFailException, match="interval is empty"):
        one.execute(asked(begin="2026-01-03T00:00:00Z"))


@pytest.mark.parametrize("end", ["sys.exit(143)", "os.kill(os.getpid(), 15)"])
def test_a_backfill_that_sigterm_ended_is_retried(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """As Airflow sends it where a worker is shut down. Its task ends as the command does."""
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from penstock.airflow import commands

    monkeypatch.setattr(commands, "COMMAND", ("-c", f"import os, sys; {end}"))
    one = commands.RunBackfill(task_id="run", backfill="replay", full_history=False)
    with pytest.raises(AirflowException, match="it is retried: ended by signal 15") as error:
        one.run_command([])
    assert not isinstance(error.value, AirflowFailException)


def test_log_levels_of_a_command_are_kept_and_its_last_line_is_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.airflow import commands

    script = """
import logging
from penstock.logs import setup
setup("backfill")
print('{"no record": 1}', flush=True)
print("a" * 300, flush=True)
logging.getLogger("x").warning("left out")
"""
    monkeypatch.setattr(commands, "COMMAND", ("-c", script))
    told: list[tuple[int, str]] = []
    kept = SimpleNamespace(log=lambda level, _, text: told.append((level, text)))
    monkeypatch.setattr(commands.RebuildStream, "log", kept)
    said = commands.RebuildStream(task_id="run").run_command([])
    assert said == "a" * 300
    assert told == [(logging.INFO, '{"no record": 1}'), (logging.INFO, said), (logging.WARNING, "left out")]
