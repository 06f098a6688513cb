"""Backfills in a whole Airflow: the form filled in, the task's log, and what the page then says; and Airflow's own
backfills over ranges of days, by its command and as its UI asks for them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import TopicPartition

from penstock.control import Actor
from penstock.devstack.servers.airflow import Airflow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host import process
from penstock.host.ports import free_port
from penstock.kafka.admin import admin, log_end_offsets
from penstock.object_store.bucket import Bucket
from penstock.settings import PROJECT
from penstock.streams import Archive, Topic
from penstock.testing import create, read
from tests.chaos.platform import call
from tests.chaos.projects import deployed
from tests.support import s3_store
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200), pytest.mark.long]

DECLARED = """
from penstock.streams import Archive, Backfill, Topic
KEPT = Archive("kept-archive", Topic("kept", partitions=2), bucket="lake", prefix="kept")
AGAIN = Topic("again", partitions=3, config={"retention.ms": "-1"})
BACKFILL = Backfill("once-more", KEPT, AGAIN, "What was kept, once more.", rate=100)
"""
# Each test of a range has a target of its own.
TARGETS = [
    Topic(name, partitions=3, config={"retention.ms": "-1"}) for name in ("days", "backwards", "mended", "cleaned")
]
KEPT = Archive("kept-archive", Topic("kept", partitions=2), bucket="lake", prefix="kept")
DAY = datetime(2026, 1, 1, tzinfo=UTC)
EACH = 300
DAG_ID = "backfill_once-more"
# What Airflow on its SQLite may say to whoever creates a backfill while the scheduler writes, and for two minutes then,
# of what is left of that one; it is asked again.
BUSY = ("database is locked", "Another backfill is running")
DAG = f"dags/{DAG_ID}"
# Of the days after: what lies within each, beside its first and its last moment. Of the fourth there is nothing.
LAST = timedelta(days=1) - timedelta(milliseconds=1)
MOMENTS = {day: (timedelta(0), timedelta(hours=3 * day), LAST) for day in (2, 3, 5, 6)}
# A busy machine takes many times what a quiet one does.
TIMEOUT = 300.0


def event(partition: int, offset: int, at: datetime, value: str) -> dict[str, Any]:
    return {
        "topic": "kept", "partition": partition, "offset": offset, "key": b"k", "value": value.encode(),
        "timestamp": at, "event_time": at, "headers": None,
    }  # fmt: skip


def events() -> list[dict[str, Any]]:
    """Of the first day each minute one in each partition, for five hours; of others those of MOMENTS."""
    first = [event(p, n, DAY + timedelta(minutes=n), f"{p}/{n}") for p in (0, 1) for n in range(EACH)]
    later = [(day, n) for day in MOMENTS for n in range(len(MOMENTS[day]))]
    return first + [
        event(p, EACH + k, DAY.replace(day=day) + MOMENTS[day][n], f"{p}/{day}/{n}")
        for p in (0, 1) for k, (day, n) in enumerate(later)
    ]  # fmt: skip


def values(*days: int) -> list[str]:
    """Of the records of these days."""
    return sorted(f"{p}/{day}/{n}" for p in (0, 1) for day in days for n in range(len(MOMENTS.get(day, ()))))


@dataclass(frozen=True)
class Whole:
    """Airflow, the broker's address, and the archive."""

    airflow: Airflow
    bootstrap: str
    store: Bucket

    def held(self, topic: str) -> list[str]:
        return [str(r.value) for r in read(self.bootstrap, topic)]

    def ends(self, topic: str) -> dict[tuple[str, int], int]:
        """Whatever was written is seen in them, marks of transactions too."""
        return log_end_offsets(admin(self.bootstrap), [(topic, p) for p in range(3)], self.bootstrap)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    tmp_path = tmp_path_factory.mktemp("whole")
    home, project = tmp_path / "penstock", tmp_path / "project"
    (project / "jobs" / "kept").mkdir(parents=True)
    (project / "jobs" / "kept" / "__init__.py").touch()
    (project / "jobs" / "kept" / "again.py").write_text(DECLARED)
    with ExitStack() as stack:
        endpoint = s3_store.endpoint_of(stack.enter_context(s3_store.server(tmp_path / "s3")))
        s3_store.write_to_archive(KEPT, endpoint, events())
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home, port=free_port()))
        given = {
            "PENSTOCK_S3_URL": endpoint.url,
            "PENSTOCK_S3_ACCESS_KEY": endpoint.access_key,
            "PENSTOCK_S3_SECRET_KEY": endpoint.secret_key,
        }
        control = stack.enter_context(deployed(project, broker, mariadb, home, **given))
        create(broker.bootstrap, *TARGETS)
        # The archive is as it is; no driver is needed.
        control.set_desired(["kept-archive"], "off", Actor("test", "cli"))
        airflow = stack.enter_context(Airflow(home, free_port(), project))
        dags = f"dags?dag_id_pattern={DAG_ID}"
        wait_until(lambda: asked(airflow, dags).get("total_entries"), TIMEOUT, every=1, what="Airflow knows the DAG")
        yield Whole(airflow, broker.bootstrap, Bucket(endpoint, KEPT.bucket, KEPT.prefix))


def asked(airflow: Airflow, path: str) -> dict[str, Any]:
    """What the API says, or nothing if it takes its time: a busy machine's starts its tasks first."""
    with suppress(httpx.TimeoutException):
        return dict(call(airflow, "GET", path))
    return {}


def ended(airflow: Airflow, run: str) -> str:
    """How a run ended, once it has."""

    def state() -> str | None:
        found = asked(airflow, f"{DAG}/dagRuns/{run}").get("state")
        return found if found in ("success", "failed") else None

    return wait_until(state, TIMEOUT, every=1, what=f"{run} ends") or ""


def told(airflow: Airflow, run: str) -> list[str]:
    """The lines of a run's log, of its task's last try, and with what it failed."""
    task = f"{DAG}/dagRuns/{run}/taskInstances/run"
    tries = call(airflow, "GET", task)["try_number"]
    found = call(airflow, "GET", f"{task}/logs/{tries}")["content"]
    why = [str(error["exc_value"]) for record in found for error in record.get("error_detail", [])]
    return [str(record["event"]) for record in found] + why


def rows(airflow: Airflow) -> dict[str, dict[str, Any]]:
    """The runs that the operator page shows, by run."""
    head = {"Authorization": f"Bearer {airflow.token()}"}
    answer = httpx.get(f"{airflow.url}/penstock/api/backfills", headers=head, timeout=60).raise_for_status()
    return {row["run"]: row for row in answer.json()["runs"]}


def command(airflow: Airflow, *words: str) -> str:
    """What Airflow's own command says, where an operator has set no more than docs/backfills.md asks for."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "AIRFLOW"))}
    env["AIRFLOW_HOME"] = str(airflow.layout.folder)
    program = str(Path(sys.executable).with_name("airflow"))

    def created() -> str:
        done = process.run_captured([program, "backfill", "create", "--dag-id", DAG_ID, *words], env=env, cwd=PROJECT)
        if any(said in done.stderr for said in BUSY):
            return ""
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout or "nothing"

    return wait_until(created, TIMEOUT, every=1, what="Airflow's backfill is created")


def day(n: int) -> str:
    return f"2026-01-{n:02}T00:00:00Z"


def latest(airflow: Airflow) -> dict[str, Any]:
    """Airflow's last backfill of the DAG, once all its runs have ended."""

    def done() -> dict[str, Any] | None:
        found = asked(airflow, f"backfills?dag_id={DAG_ID}&order_by=-id").get("backfills", [])
        return dict(found[0]) if found and found[0]["completed_at"] else None

    return wait_until(done, TIMEOUT, every=1, what="Airflow's backfill is completed") or {}


def runs(airflow: Airflow) -> dict[str, dict[str, Any]]:
    """The runs of Airflow's backfills, by the beginnings of their data intervals, in order of time."""
    found = call(airflow, "GET", f"{DAG}/dagRuns?run_type=backfill&limit=100&order_by=logical_date")["dag_runs"]
    return {run["data_interval_start"]: run for run in found}


def tried(airflow: Airflow, run: dict[str, Any]) -> dict[str, Any]:
    """The last try of a run's task."""
    return dict(call(airflow, "GET", f"{DAG}/dagRuns/{run['dag_run_id']}/taskInstances/run"))


def test_triggered_run_verified_and_shown(whole: Whole) -> None:
    one = whole.airflow
    # As the form sends it.
    form = {"begin": "2026-01-01T00:00:00+00:00", "end": "2026-01-01T02:00:00Z", "rate": 40}
    run = call(one, "POST", f"{DAG}/dagRuns", logical_date=None, conf=form)["dag_run_id"]
    assert ended(one, run) == "success"
    assert sorted(whole.held("again")) == sorted(f"{p}/{n}" for p in (0, 1) for n in range(120))
    lines = told(one, run)
    assert any(" of 240 rows, " in line and "rows/s" in line and "s left" in line for line in lines), lines
    assert any("240 rows written; 240 rows, hash" in line for line in lines), lines
    (shown,) = (row for row in rows(one).values() if row["owner"].startswith(f"backfill_once-more/{run}/"))
    assert (shown["state"], shown["rows"], shown["rows_done"], shown["files"]) == (
        "done",
        240,
        240,
        shown["files_done"],
    )
    assert shown["verified"].startswith("240 rows, hash")

    # Who asks for no interval is told so at once.
    run = call(one, "POST", f"{DAG}/dagRuns", logical_date=None, conf={})["dag_run_id"]
    assert ended(one, run) == "failed"
    assert any("give begin and end" in line for line in told(one, run))

    # However old the day is that is asked for, it is looked for.
    run = call(one, "POST", f"{DAG}/dagRuns", logical_date="2019-06-02T00:00:00Z", conf={})["dag_run_id"]
    assert ended(one, run) == "failed"
    assert any("2019-06-01T00:00..2019-06-02T00:00" in line and "it begins later" in line for line in told(one, run))


RANGE = ("--from-date", "2026-01-02", "--to-date", "2026-01-05")


def test_range_of_days_by_airflows_command(whole: Whole) -> None:
    one = whole.airflow
    asks = (*RANGE, "--dag-run-conf", '{"target": "days"}', "--reprocess-behavior", "completed")
    plan = command(one, *asks, "--dry-run").partition("Runs to be attempted")[2]
    assert [n for n in range(1, 8) if f"2026-01-{n:02} 00:00:00" in plan] == [2, 3, 4, 5]
    assert not runs(one)

    command(one, *asks)
    latest(one)
    made = runs(one)
    assert list(made) == [day(n) for n in (2, 3, 4, 5)]
    for n, run in zip((2, 3, 4, 5), made.values(), strict=True):
        lines = told(one, run["dag_run_id"])
        assert run["state"] == "success", lines
        assert (run["logical_date"], run["data_interval_end"]) == (day(n), day(n + 1))
        wanted = f"{len(values(n))} rows, hash" if values(n) else "nothing is in archive kept-archive for this interval"
        assert any(wanted in line for line in lines), lines
    # Each day of the range from its first moment to its last; nothing of the days before and behind.
    assert sorted(whole.held("days")) == values(2, 3, 5)
    spans = [(t["start_date"], t["end_date"]) for t in (tried(one, run) for run in made.values())]
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), spans

    ends = whole.ends("days")
    command(one, *asks)
    latest(one)
    again = runs(one)
    assert not {run["start_date"] for run in again.values()} & {run["start_date"] for run in made.values()}
    assert [run["dag_run_id"] for run in again.values()] == [run["dag_run_id"] for run in made.values()]
    for run in again.values():
        lines = told(one, run["dag_run_id"])
        assert run["state"] == "success", lines
        assert any("0 rows written; nothing is" in line for line in lines), lines
    assert whole.ends("days") == ends


def test_range_of_days_as_the_ui_asks_for_it(whole: Whole) -> None:
    one = whole.airflow
    # All fields of the form are sent, as they are.
    form = {name: field["value"] for name, field in call(one, "GET", f"{DAG}/details")["params"].items()}
    body = {
        "dag_id": DAG_ID, "from_date": "2026-01-02T00:00:00.000Z", "to_date": "2026-01-03T00:00:00.000Z",
        "dag_run_conf": {**form, "target": "backwards", "rate": 0}, "max_active_runs": 1,
        "reprocess_behavior": "completed", "run_backwards": True, "run_on_latest_version": True,
    }  # fmt: skip
    # What its dialogue says beforehand: how many there will be.
    shown = call(one, "POST", "backfills/dry_run", **body)
    assert [run["logical_date"] for run in shown["backfills"]] == [day(3), day(2)]

    def created() -> bool:
        try:
            return bool(call(one, "POST", "backfills", **body))
        except httpx.HTTPStatusError as e:
            if e.response.status_code in (409, 503):
                return False
            raise

    wait_until(created, TIMEOUT, every=1, what="Airflow's backfill is created")
    latest(one)
    made = runs(one)
    assert [made[day(n)]["state"] for n in (2, 3)] == ["success", "success"]
    assert sorted(whole.held("backwards")) == values(2, 3)
    assert tried(one, made[day(3)])["end_date"] <= tried(one, made[day(2)])["start_date"]
    # Unless it is told so, what was run is not run again.
    assert call(one, "POST", "backfills/dry_run", **{**body, "reprocess_behavior": "none"})["total_entries"] == 0


def test_days_that_fail_say_why_hold_no_other_up_and_are_done_when_mended(whole: Whole) -> None:
    one, store = whole.airflow, whole.store
    asks = ("--from-date", "2025-12-31", "--to-date", "2026-01-06", "--dag-run-conf", '{"target": "mended", "rate": 0}')
    (file,) = (file for file in store.list_objects("date=2026-01-06/hour=18"))
    whole_file = store.get(file.key)
    store.put(file.key, whole_file[:-20])
    command(one, *asks, "--reprocess-behavior", "completed")
    latest(one)
    before = runs(one)
    assert [start for start, run in before.items() if run["state"] != "success"] == ["2025-12-31T00:00:00Z", day(6)]
    early, damaged = (told(one, before[start]["dag_run_id"]) for start in ("2025-12-31T00:00:00Z", day(6)))
    assert any("it begins later" in line and "take an interval within" in line for line in early), early
    assert any("lake/kept" in line and file.key in line for line in damaged), damaged
    minutes = [f"{p}/{n}" for p in (0, 1) for n in range(EACH)]
    assert sorted(whole.held("mended")) == sorted(minutes + values(2, 3, 5))

    store.put(file.key, whole_file)
    command(one, *asks, "--reprocess-behavior", "failed")
    latest(one)
    after = runs(one)
    assert [start for start, run in after.items() if run["state"] != "success"] == ["2025-12-31T00:00:00Z"]
    assert [start for start in after if after[start]["start_date"] != before[start]["start_date"]] == [
        "2025-12-31T00:00:00Z",
        day(6),
    ]
    assert sorted(whole.held("mended")) == sorted(minutes + values(2, 3, 5, 6))


def test_day_whose_rows_are_lost_before_they_are_verified_fails(whole: Whole) -> None:
    one = whole.airflow
    asks = ("--from-date", "2026-01-01", "--to-date", "2026-01-01")
    slowly = json.dumps({"target": "cleaned", "rate": 20})
    command(one, *asks, "--dag-run-conf", slowly, "--reprocess-behavior", "completed")
    places = wait_until(
        lambda: [place for place, end in whole.ends("cleaned").items() if end], TIMEOUT, what="the first rows"
    )
    for deleted in admin(whole.bootstrap).delete_records([TopicPartition(*place, -1) for place in places]).values():
        deleted.result(60)
    latest(one)
    run = runs(one)[day(1)]
    lines = told(one, run["dag_run_id"])
    assert run["state"] == "failed", lines
    assert any("cleaned does not hold what the source gives" in line and "--again" in line for line in lines), lines

    # As it says.
    once_more = json.dumps({"target": "cleaned", "rate": 0, "again": True})
    left = len(whole.held("cleaned"))
    command(one, *asks, "--dag-run-conf", once_more, "--reprocess-behavior", "failed")
    latest(one)
    run = runs(one)[day(1)]
    assert run["state"] == "success", told(one, run["dag_run_id"])
    held = whole.held("cleaned")
    assert len(held) == left + 2 * EACH
    assert set(held) == {f"{p}/{n}" for p in (0, 1) for n in range(EACH)}
