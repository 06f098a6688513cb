"""`penstock backfill`: runs of a backfill, which may have none, or be no backfill, and the jobs of a command."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.backfill.job import BackfillJob
from penstock.catalog import build
from penstock.cli import app
from penstock.cli.backfills import _job
from penstock.control import connect
from penstock.errors import BackfillError
from penstock.settings import PROJECT
from penstock.streams import Backfill, Collection, IcebergTable, RowsQuery, Topic, TopicOutput
from tests.chaos.projects import other_project
from tests.support.control_tables import create_tables


def test_an_unknown_name_is_an_error_and_no_backfill_without_runs(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "sql" / "captures").mkdir(parents=True)
    with other_project(tmp_path, {"PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path}/control.db"}):
        control = connect()
        create_tables(control)
        done = [CliRunner().invoke(app, ["backfill", "show", *name]) for name in ((), ("nosuch",))]
        control.engine.dispose()
    assert (done[0].exit_code, done[0].output) == (0, "No backfill has run yet: penstock backfill run NAME.\n")
    assert (done[1].exit_code, done[1].output) == (2, "error: there is no backfill named 'nosuch'; take one of: none\n")


@pytest.mark.processes
def test_a_run_may_be_tried_again_when_the_control_database_is_away(tmp_path: Path) -> None:
    variables = {
        "PENSTOCK_CONTROL_URL": "mysql+pymysql://u:p@127.0.0.1:1/control", "PENSTOCK_HOME": str(tmp_path),
        "PENSTOCK_S3_URL": "http://store.example",
    }  # fmt: skip
    day = ["--from", "2026-01-31", "--to", "2026-02-01"]
    with other_project(PROJECT, variables):
        done = CliRunner().invoke(app, ["backfill", "run", "summaries-again", *day])
    assert done.exit_code == 75, done.output
    assert "a statement of the control database failed" in done.stderr


def test_a_table_is_read_by_its_interval_and_as_of_a_time() -> None:
    rows = RowsQuery("at", "SELECT id FROM records")
    table = Backfill("orders", IcebergTable("shop.orders"), TopicOutput(Topic("o"), key="id", value="id"), rows=rows)
    catalog = build([table, replace(table, name="all-orders", full_history=True)])
    day = datetime(2026, 1, 31)

    def job(name: str = "orders", begin: datetime | None = day, as_of: datetime | None = None) -> BackfillJob:
        return _job(catalog, name, begin, None, "", "", None, False, "original", False, "", as_of)

    assert job(as_of=datetime(2026, 2, 1, tzinfo=UTC)).as_of == datetime(2026, 2, 1, tzinfo=UTC)
    with pytest.raises(BackfillError, match="cannot read as of a time to come; got: --as-of 2999-01-01T00:00:00"):
        job(as_of=datetime(2999, 1, 1, tzinfo=UTC))
    assert job("all-orders", None).begin is None
    with pytest.raises(BackfillError, match="backfill orders needs an interval"):
        job(begin=None)
    with pytest.raises(BackfillError, match="reads everything before its end"):
        job("all-orders")
    declared = replace(rows, schema="id STRING, at TIMESTAMP")
    catalog = build([replace(table, name="documents", source=Collection("shop", "orders"), rows=declared)])
    assert job("documents", None).begin is None
    with pytest.raises(BackfillError, match="backfill documents reads no archive and no Iceberg table"):
        job("documents", as_of=datetime(2026, 2, 1, tzinfo=UTC))
