"""Changes of replacements by the page, without Airflow's checks; tests/browser asks a server for these."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.control import Actor, Control, ReplacementRow, tables
from penstock.errors import ReplacementRefused
from penstock.supervision import release
from penstock.supervision.replacement_options import replacement_options

# Airflow's API imports the client of starlette's tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


@pytest.fixture
def row(control: Control) -> ReplacementRow:
    """A replacement that is cut."""
    with control.begin() as c:
        c.execute(tables.app.insert().values(name="metrics", release_seq=0, restarts=0, digest="old"))
    options = replacement_options()
    row = control.request_replacement("bundles", "metrics", "new", "old", Actor("ann", "cli"), options)
    control.move_replacement(row.id, "following")
    control.begin_cut(row.id)
    control.move_replacement(row.id, "cut", figures={"examples": [{"key": "shop-1"}]})
    return row


@pytest.fixture
def client(control: Control, airflow_home: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # noqa: ARG001
    """Requests of a user who may do everything."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi.testclient import TestClient

    from penstock.airflow import page_releases
    from penstock.airflow.page import app
    from penstock.airflow.permissions import may_operate, may_release, may_view

    monkeypatch.setattr(page_releases, "connect", lambda: control)
    user = SimpleNamespace(get_name=lambda: "olga")
    overrides: dict[Any, Any] = dict.fromkeys((may_view, may_operate, may_release), lambda: None)
    monkeypatch.setattr(app, "dependency_overrides", {**overrides, get_user: lambda: user})
    headers = {"Authorization": "Bearer x"}
    with TestClient(app, base_url="http://localhost", headers=headers) as made:
        yield made


def post(client: Any, row: ReplacementRow, verb: str) -> tuple[int, dict[str, Any]]:
    answer = client.post("/api/replacements", json={"verb": verb, "replacement": row.id, "note": "by test"})
    return answer.status_code, answer.json()


def test_to_go_back_is_asked_in_the_name_of_the_user(
    client: Any, row: ReplacementRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def start(_: Control, *given: Any) -> ReplacementRow:
        asked.append(given)
        return row

    monkeypatch.setattr(release, "start_going_back", start)
    assert post(client, row, "back") == (200, {"replacement": row.id})
    assert asked == [("metrics", "bundles", Actor("olga", "page"), replacement_options(), "by test")]

    def refuse(*_: Any) -> ReplacementRow:
        raise ReplacementRefused("app metrics was released since")

    monkeypatch.setattr(release, "start_going_back", refuse)
    assert post(client, row, "back") == (
        409, {"code": "release_refused", "detail": "app metrics was released since"},
    )  # fmt: skip


def test_a_replacement_that_has_ended_is_not_undone(client: Any, row: ReplacementRow, control: Control) -> None:
    assert post(client, row, "cut")[0] == 409, "it is cut"
    assert post(client, row, "confirm") == (200, {"replacement": row.id})
    assert control.actions(1)[0]["actor"] == "olga"
    for verb in ("back", "confirm", "cancel"):
        status, answer = post(client, row, verb)
        assert (status, "it is confirmed: by test; hint: it must be" in answer["detail"]) == (409, True), answer


def test_a_cut_is_not_confirmed_while_another_replacement_follows_it(
    client: Any, row: ReplacementRow, control: Control
) -> None:
    control.request_replacement("bundles", "metrics", "old", "new", Actor("ann", "cli"), {"back": True})
    status, answer = post(client, row, "confirm")
    assert (status, "got: it is queued; hint: it must be cut" in answer["detail"]) == (409, True), answer


def test_differences_are_examples_of_rows(client: Any, row: ReplacementRow) -> None:
    answer = client.get("/api/differences", params={"replacement": row.id})
    assert answer.json() == {"examples": [{"key": "shop-1"}]}
    assert client.get("/api/differences", params={"replacement": "nosuch"}).status_code == 404
