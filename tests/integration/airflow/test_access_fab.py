"""Who may view, operate and release with FAB, by the roles that docs/access.md describes, on a real api-server."""

from __future__ import annotations

import re
import shlex
import subprocess
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Set

import httpx
import pytest

from penstock.control import Control
from penstock.settings import PROJECT
from tests.browser.server import Server, api_server
from tests.support.page_access import Permission, check_dags, check_origins, check_page

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
PASSWORD = "gate-of-the-mill"
# Roles beside `Viewer`, and the permissions that they are to give.
USERS: Mapping[str, tuple[list[str], Set[Permission]]] = {
    "nina": ([], set()),
    "vera": (["PenstockViewer"], {"view"}),
    "otto": (["PenstockOperator"], {"view", "operate"}),
    "olga": (["PenstockReleaser"], {"view", "operate", "release"}),
    "ugo": (["User"], {"operate", "release"}),
    "oda": (["Op"], {"view", "operate", "release"}),
}


def documented_commands() -> list[list[str]]:
    """The commands of the docs that make the roles."""
    text = (PROJECT / "docs" / "access.md").read_text()
    found = [shlex.split(line) for line in re.findall(r"^\$ airflow (roles .*)$", text, re.MULTILINE)]
    assert len(found) > 1
    return found


def user_commands() -> Iterator[list[str]]:
    for name, (roles, _) in USERS.items():
        who = ["-u", name, "-p", PASSWORD, "-f", name, "-l", name, "-e", f"{name}@example.org"]
        yield ["users", "create", *who, "-r", "Viewer"]
        yield from (["users", "add-role", "-u", name, "-r", role] for role in roles)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with FAB, laid over that of the tests."""
    folder = tmp_path_factory.mktemp("fab")
    venv.create(folder)
    [packages] = folder.glob("lib/*/site-packages")
    below = sysconfig.get_path("purelib")
    (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    found = str(folder / "bin" / "python")
    install = [found, "-m", "pip", "install", "--quiet", "-r", str(PROJECT / "tests" / "requirements-fab.txt")]
    subprocess.run(install, check=True)
    return found


@pytest.fixture(scope="module")
def server(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("airflow")
    control = Control(f"sqlite:///{home / 'control.db'}")
    control.migrate()
    control.engine.dispose()
    commands = [["sync-perm"], *documented_commands(), *user_commands()]
    auth = {"AIRFLOW__CORE__AUTH_MANAGER": MANAGER}
    url = f"sqlite:///{home / 'control.db'}"
    with api_server(home, url, {}, auth=auth, commands=commands, python=python) as found:
        yield found


@pytest.fixture(scope="module")
def users(server: Server) -> dict[str, tuple[str, Set[Permission]]]:
    found: dict[str, tuple[str, Set[Permission]]] = {}
    for name, (_, permissions) in USERS.items():
        body = {"username": name, "password": PASSWORD}
        answer = httpx.post(f"{server.url}/auth/token", json=body, timeout=60)
        answer.raise_for_status()
        found[name] = (answer.json()["access_token"], permissions)
    return found


def test_every_route_asks_for_its_permission(server: Server, users: dict[str, tuple[str, Set[Permission]]]) -> None:
    check_page(server.url, users)


def test_every_action_comes_from_the_page(server: Server, users: dict[str, tuple[str, Set[Permission]]]) -> None:
    check_origins(server.url, users["olga"][0])


def test_airflow_lets_trigger_the_dags_whom_the_page_lets_act(
    server: Server, users: dict[str, tuple[str, Set[Permission]]]
) -> None:
    check_dags(server.url, users)
