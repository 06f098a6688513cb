"""A process that stops within a transaction, as one that is paused does, keeps nobody from its leases for long."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from penstock.control import Control
from penstock.devstack.servers.kafka_mariadb import MariaDB

pytestmark = pytest.mark.integration


def test_a_paused_transaction_gives_its_lease_up(mariadb: MariaDB) -> None:
    control, heir = Control(mariadb.url), Control(mariadb.url)
    control.migrate()
    control.take_lease("a-paused-one", "paused", 0.001)
    with control.engine.connect() as held:
        held.execute(text("UPDATE lease SET expires_at = expires_at WHERE name = 'a-paused-one'"))
        # Without an end to the other's transaction this fails by its time limit.
        assert heir.take_lease("a-paused-one", "heir", 60).holder == "heir"
        held.invalidate()
    for one in (control, heir):
        one.engine.dispose()
