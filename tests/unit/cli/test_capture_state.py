"""`penstock capture state`: how far each capture is, and what its last comparison found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.catalog import load
from penstock.cli import app
from penstock.control import Control, ProgressRow, connect
from penstock.control.repositories.captures import CaptureRow, Captures
from tests.chaos.projects import other_project
from tests.support.control_tables import create_tables

TEXT = "CAPTURE INTO {name} FROM sqlite x KEY (id) CURSOR at AS SELECT id, at FROM {name}"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """One that was compared, one in its snapshot, and one that the database does not know yet."""
    folder = tmp_path / "sql" / "captures"
    folder.mkdir(parents=True)
    for name in ("accounts", "tests"):
        (folder / f"{name}.sql").write_text(TEXT.format(name=name))
    monkeypatch.setenv("COLUMNS", "400")
    with other_project(tmp_path, {"PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path}/control.db"}):
        made = connect()
        create_tables(made)
        made.sync(load())
        (folder / "young.sql").write_text(TEXT.format(name="young"))
        load.cache_clear()
        incarnation = made.claim("captures", None, host="h", spec_hash="x", owner="o", log="")
        assert incarnation
        made.update_driver(incarnation, state="running", pid=1)
        now = made.now()
        given: dict[str, Any] = {
            "state": "running",
            "rows_in": 41_200,
            "rows_out": 7,
            "batch_at": now,
            "watermark": now - 11_000,
        }
        rows = [ProgressRow(name, "captures", incarnation, **given) for name in ("accounts", "tests")]
        made.report(rows, keep=False)
        drift = {"missing": 1, "differing": 2, "extra": 4, "rows": 41_200, "ended": now / 1000 - 7200}
        unsendable = {"rows": 3, "first": '{"id":9}'}
        known = Captures(made)
        known.report(
            CaptureRow("accounts", phase="polling", oldest_at=now - 400_000, drift=drift, dead_letter_rows=unsendable)
        )
        known.report(
            CaptureRow("tests", phase="snapshot", snapshot_rows=9_000, snapshot_total=25_000, reconcile="it is due",
                       skipped_until=now)
        )  # fmt: skip
        yield made
        made.engine.dispose()


def asked(*words: str) -> str:
    done = CliRunner().invoke(app, ["capture", "state", *words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("control")
def test_state_shows_progress_and_drift() -> None:
    lines = {name: " ".join(line.split()) for line in asked().splitlines() for name in line.split()[:1]}
    for said in ("polling", "41.2k 7", "6 min", "7 of 41.2k, 2 h ago", "3 rows are dead letters", 'e.g. {"id":9}'):
        assert said in lines["accounts"]
    for said in ("snapshot 36 %", "reconcile: it is due", "ignores transactions that are open too long"):
        assert said in lines["tests"]
    assert "not in the control database yet" in lines["young"]
    assert "accounts" not in asked("tests")


@pytest.mark.usefixtures("control")
def test_state_as_json() -> None:
    found = {one["name"]: one for one in json.loads(asked("--json"))}
    assert found["accounts"]["capture"]["drift"]["missing"] == 1
    assert found["tests"]["progress"]["rows_in"] == 41_200
    assert (found["young"]["progress"], found["young"]["capture"]) == (None, None)
