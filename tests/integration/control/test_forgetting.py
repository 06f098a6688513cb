"""What is not declared any more, on MariaDB and PostgreSQL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import update

from penstock.control import Actor, Control, tables
from penstock.control.repositories.apps import FORGET_MS, DeclaredApps

pytestmark = pytest.mark.integration


def declared(*apps: str) -> DeclaredApps:
    supervised = {f"{app}-stream": SimpleNamespace(name=f"{app}-stream", app=app) for app in apps}
    return cast("DeclaredApps", SimpleNamespace(apps=dict.fromkeys(apps), supervised=supervised))


def test_what_is_away_is_kept_for_ten_minutes(own_control: Control) -> None:
    control = own_control
    control.sync(declared("a", "b"))
    control.set_desired(["a-stream"], "off", Actor("me", "cli"))
    control.release("a", Actor("me", "cli"))
    for _ in range(2):
        control.sync(declared("b"))
    assert control.desired() == {"b-stream": "on"}
    assert control.stream_progress()[1].keys() == {"b-stream"}
    control.sync(declared("a", "b"))
    assert control.desired() == {"a-stream": "off", "b-stream": "on"}
    for passed in (0, FORGET_MS):
        with control.begin() as c:
            for table in (tables.app, tables.stream):
                c.execute(update(table).values(absent_since=table.c.absent_since - passed))
        control.sync(declared("b"))
        assert len(control.releases("a")) == (0 if passed else 1)
    assert control.undeclared("a") == []
