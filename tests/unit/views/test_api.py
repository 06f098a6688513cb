"""The doors of an instance: what callers may send, what they hear, and whom that holds up."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest

from penstock.model.view import View
from penstock.views.api import problems, routes
from penstock.views.api.partial_answers import partial_query
from penstock.views.api.problems import NotReady
from penstock.views.api.query import Counts, PartialCounts
from penstock.views.store.sqlite import QueryResult
from tests.support.view_api import KEYS, Doors

DOCS = Path(__file__).parents[3] / "docs" / "views.md"


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    made = Doors(tmp_path)
    made.put(*({"key": key, "town": key, "n": n, "f": 0.1} for n, key in enumerate(KEYS)))
    yield made
    for pool in made.pools:
        pool.close()


def test_a_slow_lookup_of_a_key_does_not_delay_other_requests(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page that the disk does not give must not stop the loop, which answers and asks for all others."""
    hold, read = threading.Event(), doors.run.store.read

    def slow(sql: str, given: Any = (), *more: Any) -> QueryResult:
        if list(given) == ["a"]:
            hold.wait(20)
        return read(sql, given, *more)

    monkeypatch.setattr(doors.run.store, "read", slow)

    async def asked(client: httpx.AsyncClient) -> None:
        first = asyncio.ensure_future(client.get("/v1/views/things/rows/a"))
        await asyncio.sleep(0.05)
        others = ("/v1/live", "/v1/ready", "/v1/views", "/v1/views/things/rows/b")
        assert [(await client.get(other)).status_code for other in others] == [200] * 4
        assert not first.done()
        hold.set()
        assert (await first).status_code == 200

    doors.asked(asked)


@pytest.mark.parametrize("what", ["search", "counts"])
def test_partitions_are_taken_of_other_instances_alone(doors: Doors, what: str) -> None:
    mine = {"store": doors.run.layout.version}
    sent_on = {"penstock-forwarded": "views-2"}
    for every in ([0], [0] * 60_000, [-1], [7]):
        assert doors.ask(what, {"partitions": every}).status_code == 422
    for partitions, status in (
        ([0] * 60_000, 200),
        ([0, 1], 200),
        ([-1], 422),
        ([7], 421),
        ([1 << 70], 421),
        (["0"], 422),
    ):
        assert doors.ask(what, {"partitions": partitions, **mine}, headers=sent_on).status_code == status, partitions[
            :3
        ]
    # An instance of other code, or of another declaration: what it says could not be put beside what is here.
    assert doors.ask(what, {"partitions": [0], "store": "another"}, headers=sent_on).status_code == 421


def test_what_one_instance_takes_is_not_too_much_for_the_next(doors: Doors) -> None:
    """It gets it written anew, and with partitions."""
    body = {"where": {"town": ["é" * 3000] * 43}}
    assert doors.ask("counts", body).status_code == 200
    asks = partial_query(doors.run, PartialCounts, Counts.model_validate(body))([0, 1])
    assert len(asks) < routes.BODY_LIMIT < len(asks) + 4096
    path, sent_on = "/v1/views/things/counts", {"penstock-forwarded": "views-2", "content-type": "application/json"}
    for size, status in ((1, 200), (3, 200), (5, 413)):
        more = asks + b" " * (size * routes.BODY_LIMIT - len(asks) - 1)
        sending = functools.partial(httpx.AsyncClient.post, url=path, content=more, headers=sent_on)
        assert doors.asked(sending).status_code == status
    # Nothing that a caller sends is refused as none of a schema by the next instance: it is of other code then.
    assert isinstance(problems.peer_error(422, b"{}"), NotReady)


def test_a_body_of_many_faults_is_refused_at_once(doors: Doors) -> None:
    body = {str(n): n for n in range(20_000)}
    found = doors.ask("search", body)
    assert (found.status_code, found.json()["detail"]) == (422, "body: has 20000 faults")


def test_a_criterion_of_a_long_name_is_refused_with_the_reason(doors: Doors) -> None:
    name = f"tags.{'x' * 4100}"
    for found in (doors.ask("rows", params={name: "x"}), doors.ask("search", {"where": {name: "x"}})):
        assert found.status_code == 422
        assert found.json()["detail"].endswith("String should have at most 4096 characters")


def test_an_unexpected_error_is_a_problem_without_internals(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: Any) -> Any:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(doors.service, "get", failing)
    found = doors.ask("rows/a")
    assert (found.status_code, found.headers["content-type"]) == (500, "application/problem+json")
    assert (found.json()["status"], "secret" in found.text) == (500, False)


@pytest.mark.parametrize("what", ["rows/a", "search", "counts", "batch"])
def test_a_parameter_that_is_misspelt_is_refused(doors: Doors, what: str) -> None:
    """Who asks for what is not old, and gets what is, must not take it for fresh."""
    body = {"keys": ["a"]} if what == "batch" else {} if "/" not in what else None
    for name, status in (("max_age_ms", 200), ("max_age", 400), ("", 400)):
        assert doors.ask(what, body, params={name: 60_000}).status_code == status


def test_a_time_is_returned_in_the_form_of_queries(doors: Doors) -> None:
    at = "2026-01-31T23:30:00.123999Z"
    doors.put({"key": "t", "at": datetime.fromisoformat(at)})
    assert doors.ask("rows/t").json()["value"]["at"] == at
    for found in (doors.ask("search", {"where": {"at": at}}), doors.ask("rows", params={"at": at})):
        assert [row["value"]["at"] for row in found.json()["rows"]] == [at]
    groups = doors.ask("counts", {"by": ["at"], "where": {"at": {"ge": at}}, "per": {"at": 60_000}}).json()["groups"]
    assert groups == [{"at": "2026-01-31T23:30:00.000000Z", "count": 1}]
    assert doors.ask("search", {"where": {"at": 1769902200123}}).status_code == 400


def test_the_examples_of_the_docs_are_answered(tmp_path: Path) -> None:
    text = DOCS.read_text()
    declared, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"View": View}
    exec(declared, names)
    doors = Doors(tmp_path, names["FLEET"])
    try:
        bodies = re.findall(r"`POST /v1/views/fleet/(\w+)` `(\{[^`]*\})`", text)
        bodies += re.findall(r"/v1/views/fleet/(\w+) -H .*?-d '(.*?)'\n", text, re.DOTALL)
        assert len(bodies) == 3, bodies
        for what, body in bodies:
            given = json.loads(body.replace("[...]", '["a"]').replace("{...}", "{}"))
            found = doors.ask(what, given)
            assert found.status_code == 200, (what, body, found.text)
        paths = re.findall(r"`GET /v1/views/fleet/(rows\?[^`]*)`", text)
        assert len(paths) == 1
        for path in paths:
            assert doors.ask(path).status_code == 200, path
    finally:
        for pool in doors.pools:
            pool.close()


def test_a_get_is_answered_without_another_thread_for_its_parameters(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the request takes a thread of the pool for plain functions")

    monkeypatch.setattr(anyio.to_thread, "run_sync", refused)
    assert doors.ask("rows/a").status_code == 200
