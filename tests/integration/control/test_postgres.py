"""The control database on PostgreSQL: its schema, and what is written to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import insert, text

from penstock.control import Actor, Control, schema, tables
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.model.declaration import MAX_NAME_LENGTH
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration

ME = Actor("me", "cli")


@pytest.fixture
def url(postgres: Postgres) -> str:
    """An empty database."""
    server = Control(postgres.url.replace("postgresql://", "postgresql+psycopg://"))
    with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE penstock_schema"))
    server.engine.dispose()
    return f"{server.engine.url.render_as_string(hide_password=False).rpartition('/')[0]}/penstock_schema"


def test_migrations_create_the_declared_tables(url: str) -> None:
    controls = [Control(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Control.migrate, controls))
    control = controls[0]
    with control.begin() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": schema.is_own})
        assert compare_metadata(context, tables.metadata) == []
    assert control.schema_revision() == (schema.head(), schema.head())

    captures = Captures(control)
    captures.report(
        CaptureRow("orders", phase="polling", skipped_until=5, dead_letter_rows={"rows": 1, "first": "\0k"})
    )
    captures.ask("orders", "poll", ME)
    longest = "c" * MAX_NAME_LENGTH
    captures.report(
        CaptureRow(longest, phase="polling", drift={"ended": 5.0, "missing": 1, "differing": 0, "extra": 0})
    )
    control.record_heartbeat("t" * 249, 1, 1, "host")
    row = captures.rows()["orders"]
    assert (row.skipped_until, row.dead_letter_rows, row.requested) == (5, {"rows": 1, "first": "k"}, "poll")
    assert [action["verb"] for action in control.actions()] == ["poll"]
    assert abs(row.reported_at - control.now()) < 60_000
    with control.begin() as connection:
        for n in range(2):
            figures = dict.fromkeys(("rows_per_s", "lag", "state_bytes", "late", "dead", "watermark_age_ms"), n + 3)
            connection.execute(
                insert(tables.history).values(name="s", at=n, rows_in=0, rows_out=0, restarts=0, **figures)
            )
    assert [control.history_totals(at, 1, {"s": 2}) for at in (0, 1)] == [
        {
            "rows_per_s": 3.0 + n,
            "lag": n + 3,
            "state_bytes": n + 3,
            "watermark_age_ms": n + 1,
            "late": n,
            "dead": n,
        }
        for n in range(2)
    ]
    for each in controls:
        each.engine.dispose()
