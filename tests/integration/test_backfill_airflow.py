"""A backfill in a whole Airflow: its form filled in, its task's log, and what the page then says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.control import Actor
from penstock.local.airflow import Airflow
from penstock.local.parts import Broker, MariaDB
from penstock.machine.process import free_port
from penstock.streams import Archive, Topic
from penstock.testing import read
from tests import archived
from tests.chaos.platform import call
from tests.chaos.projects import deployed
from tests.support import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200), pytest.mark.long]

DECLARED = """
from penstock.streams import Archive, Backfill, Topic
KEPT = Archive("kept-archive", Topic("kept", partitions=2), bucket="lake", prefix="kept")
AGAIN = Topic("again", partitions=3, config={"retention.ms": "-1"})
BACKFILL = Backfill("once-more", KEPT, AGAIN, "What was kept, once more.", rate=100)
"""
KEPT = Archive("kept-archive", Topic("kept", partitions=2), bucket="lake", prefix="kept")
DAY = datetime(2026, 1, 1, tzinfo=UTC)
EACH = 300
DAG = "dags/backfill_once-more"
# A busy machine takes many times what a quiet one does.
PATIENCE = 300.0


def events() -> list[dict[str, Any]]:
    """Each minute one in each partition."""
    return [
        {
            "topic": "kept", "partition": p, "offset": n, "key": b"k", "value": b"%d/%d" % (p, n),
            "timestamp": at, "event_time": at, "headers": None,
        }
        for p in (0, 1) for n in range(EACH)
        for at in [DAY + timedelta(minutes=n)]
    ]  # fmt: skip


@pytest.fixture
def airflow(tmp_path: Path, home: Path) -> Iterator[tuple[Airflow, str]]:
    """With an archive; and the broker's address."""
    project = tmp_path / "project"
    (project / "jobs" / "kept").mkdir(parents=True)
    (project / "jobs" / "kept" / "__init__.py").touch()
    (project / "jobs" / "kept" / "again.py").write_text(DECLARED)
    with ExitStack() as stack:
        where = archived.where(stack.enter_context(archived.server(tmp_path / "s3")))
        archived.holds(KEPT, where, events())
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home, port=free_port()))
        given = {
            "PENSTOCK_S3_URL": where.url,
            "PENSTOCK_S3_ACCESS_KEY": where.access_key,
            "PENSTOCK_S3_SECRET_KEY": where.secret_key,
        }
        control = stack.enter_context(deployed(project, broker, mariadb, home, **given))
        # The archive is as it is; no driver is needed.
        control.set_desired(["kept-archive"], "off", Actor("test", "cli"))
        yield stack.enter_context(Airflow(home, free_port(), project)), broker.bootstrap


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

    return wait_until(state, PATIENCE, every=1, what=f"{run} ends") or ""


def told(airflow: Airflow, run: str) -> list[dict[str, Any]]:
    """The records of a run's log."""
    task = f"{DAG}/dagRuns/{run}/taskInstances/run"
    found: list[dict[str, Any]] = call(airflow, "GET", f"{task}/logs/1")["content"]
    return found


def rows(airflow: Airflow) -> dict[str, dict[str, Any]]:
    """The runs that the operator page shows, by run."""
    head = {"Authorization": f"Bearer {airflow.token()}"}
    answer = httpx.get(f"{airflow.url}/penstock/api/overview", headers=head, timeout=60).raise_for_status()
    return {row["run"]: row for row in answer.json()["runs"]}


def test_triggered_run_verified_and_shown(airflow: tuple[Airflow, str]) -> None:
    one, bootstrap = airflow
    dags = "dags?dag_id_pattern=backfill_once-more"
    wait_until(lambda: asked(one, dags).get("total_entries"), PATIENCE, every=1, what="Airflow knows the DAG")

    # As the form sends it.
    form = {"begin": "2026-01-01T00:00:00+00:00", "end": "2026-01-01T02:00:00Z", "rate": 40}
    run = call(one, "POST", f"{DAG}/dagRuns", logical_date=None, conf=form)["dag_run_id"]
    assert ended(one, run) == "success"
    values = [r.value for r in read(bootstrap, "again")]
    assert sorted(map(str, values)) == sorted(f"{p}/{n}" for p in (0, 1) for n in range(120))
    lines = [str(record["event"]) for record in told(one, run)]
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
