"""Actions on captures and blocked streams by the page's API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock.control import Control
from penstock.control.repositories.captures import Captures
from penstock.control.repositories.data_loss import DataLoss
from tests.browser.server import same_origin
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser


def test_data_loss_is_accepted_once(olga: httpx.Client, control: Control) -> None:
    body: dict[str, Any] = {"verb": "go-on", "kind": "stream", "name": "bundles", "note": "known"}
    control.report_data_loss("bundles", [DataLoss("bundles-in", "cut", 0, 5, 9, 4)])
    try:
        answer = olga.post("/penstock/api/actions", json=body, headers=same_origin(olga))
        assert (answer.status_code, "look at its gaps again" in answer.json()["detail"]) == (409, True)
        shown = olga.get("/penstock/api/streams/bundles").json()["stream"]["gaps"]
        body["gaps"] = [gap["id"] for gap in shown if not gap["accepted_by"]]
        answer = olga.post("/penstock/api/actions", json=body, headers=same_origin(olga))
        assert (answer.status_code, len(answer.json()["accepted"])) == (200, 1)
        action = control.actions(1)[0]
        assert (action["actor"], action["verb"], action["target"]) == ("olga", "go-on", "bundles")
        assert action["detail"].startswith("known: bundles-in")
        for name, kind, status in (("bundles", "stream", 409), ("metrics", "app", 409), ("none", "stream", 404)):
            again = olga.post(
                "/penstock/api/actions", json=body | {"name": name, "kind": kind}, headers=same_origin(olga)
            )
            assert again.status_code == status
    finally:
        control.report_data_loss("bundles", [])


def test_a_request_to_a_capture_is_recorded(olga: httpx.Client, control: Control) -> None:
    body = {"verb": "reconcile", "kind": "capture", "name": "accounts", "note": "by test"}
    answer = olga.post("/penstock/api/actions", json=body, headers=same_origin(olga))
    assert answer.status_code == 200
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        "olga", "page", "reconcile", "accounts", "by test",
    ]  # fmt: skip

    def shown() -> dict[str, Any]:
        [row] = olga.get("/penstock/api/captures", params={"q": "accounts"}).json()["captures"]
        return dict(row)

    # Who has asked sees it at once.
    first = shown()
    assert (first["phase"], first["asked"], first["drift"]["differing"]) == ("polling", "reconcile", 2)
    Captures(control).answer("accounts", answer.json()["request"], "its table is gone")
    wait_until(
        lambda: (shown()["asked"], shown()["answer"]) == (None, "its table is gone"), 30, what="the answer is shown"
    )
    for name, kind, status in (("bundles", "capture", 404), ("accounts", "stream", 422)):
        answer = olga.post("/penstock/api/actions", json=body | {"name": name, "kind": kind}, headers=same_origin(olga))
        assert answer.status_code == status
