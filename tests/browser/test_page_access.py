"""Who may view, operate and release: every route of the page, and the DAGs, with Airflow's simple auth manager."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import pytest

from penstock.control import Control
from tests.browser.server import Server
from tests.support.page_access import Permission, check_dags, check_origins, check_page

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("scene")]
USERS: dict[str, Set[Permission]] = {
    "vera": {"view"},
    "otto": {"view", "operate"},
    "olga": {"view", "operate", "release"},
}


@pytest.fixture
def users(server: Server) -> Mapping[str, tuple[str, Set[Permission]]]:
    return {name: (server.token(name), permissions) for name, permissions in USERS.items()}


def test_every_route_asks_for_its_permission(server: Server, users: Any, control: Control) -> None:
    before = control.actions(1)[0]["id"]
    check_page(server.url, users)
    assert control.actions(1)[0]["id"] == before


def test_every_action_comes_from_the_page(server: Server, users: Any) -> None:
    check_origins(server.url, users["olga"][0])


def test_airflow_lets_trigger_the_dags_whom_the_page_lets_act(server: Server, users: Any) -> None:
    check_dags(server.url, users)
