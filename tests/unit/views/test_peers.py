"""How one instance of the views asks another, by a server that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic

import pytest

from penstock.control.repositories.view_instances import ViewInstanceRow
from penstock.host.ports import free_port
from penstock.views.cluster import peers
from penstock.views.cluster.peers import InstanceDirectory, PeerClient, PeerResponse
from penstock.views.cluster.protocol import PeerUnavailable
from penstock.views.store.sqlite import QueryTimeout

pytestmark = pytest.mark.processes

OK = "HTTP/1.1 200 OK\r\npenstock-lag: 3\r\ncontent-length: 2\r\n\r\n{}"
Asks = Callable[[PeerClient, InstanceDirectory, list[str]], Awaitable[None]]


@asynccontextmanager
async def answering(answer: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that gives one answer to all, or none if it is empty; its URL and the requests it was sent."""
    heads: list[str] = []
    open_: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                if answer:
                    writer.write(answer.encode())
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        # The one that asks has closed its connections.
        await asyncio.gather(*open_)


def asked(answer: str, ask: Asks, url: str = "") -> None:
    """Ask instance 2, which is this server; url: or is elsewhere."""

    async def run() -> None:
        async with answering(answer) as (own, heads):
            directory = InstanceDirectory(None, ViewInstanceRow("views-1", 1, "a", ""), dict)  # type: ignore[arg-type]
            directory._rows = {2: ViewInstanceRow("views-2", 2, "b", url or own)}
            given = PeerClient(directory, "secret")
            try:
                await ask(given, directory, heads)
            finally:
                await given.close()

    asyncio.run(run())


def test_a_request_is_forwarded_unchanged_with_sender_and_deadline() -> None:
    async def ask(given: PeerClient, _: InstanceDirectory, heads: list[str]) -> None:
        found = await given.ask(2, "GET", "/v1/views/v/rows/%2E%2E%2Fa%20b%25?max_age_ms=5", monotonic() + 1)
        assert found.status == 200
        assert found.content == b"{}"
        assert found.headers["Penstock-Lag"] == "3"
        assert heads[0].startswith("GET /v1/views/v/rows/%2E%2E%2Fa%20b%25?max_age_ms=5 HTTP/1.1\r\n")
        said = dict(line.lower().split(": ", 1) for line in heads[0].splitlines()[1:] if line)
        assert said["penstock-forwarded"] == "views-1"
        assert 0 < int(said["penstock-deadline-ms"]) <= 1000
        assert said["authorization"] == "bearer secret"

    asked(OK, ask)


@pytest.mark.parametrize("status", ["421 Misdirected Request", "503 Service Unavailable", "404 Not Found"])
def test_an_instance_that_refuses_connections_is_away_and_not_suspected(status: str) -> None:
    async def ask(given: PeerClient, directory: InstanceDirectory, _: list[str]) -> None:
        with pytest.raises(PeerUnavailable, match="cannot answer now"):
            await given.ask(2, "GET", "/v1/x", monotonic() + 1)
        assert not directory.is_suspect(2)

    asked(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n", ask)


def test_a_key_that_is_not_there_is_an_answer() -> None:
    async def ask(given: PeerClient, _: InstanceDirectory, __: list[str]) -> None:
        assert (await given.ask(2, "GET", "/v1/x", monotonic() + 1)).status == 404

    asked("HTTP/1.1 404 Not Found\r\npenstock-lag: 0\r\ncontent-length: 0\r\n\r\n", ask)


def test_a_query_that_no_other_can_answer_has_all_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is late behind that, which is no fault of an instance."""
    monkeypatch.setattr(peers, "FORWARD_TIMEOUT", 0.1)

    async def ask(given: PeerClient, _: InstanceDirectory, heads: list[str]) -> None:
        with pytest.raises(PeerUnavailable):
            await given.ask(2, "POST", "/v1/x", monotonic() + 60, content=b"{}")
        with pytest.raises(QueryTimeout):
            await given.ask(2, "POST", "/v1/x", monotonic() + 0.5, content=b"{}", last=True)
        for head, most in zip(heads, (100, 500), strict=True):
            left = int(head.lower().partition("penstock-deadline-ms: ")[2].split()[0])
            assert most / 2 < left <= most

    asked("", ask)


@pytest.mark.parametrize(("answer", "url"), [("", ""), ("no HTTP\r\n\r\n", ""), (OK, "http://127.0.0.1:{port}")])
def test_an_instance_that_does_not_answer_is_suspected(answer: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(given: PeerClient, directory: InstanceDirectory, _: list[str]) -> None:
        with pytest.raises(PeerUnavailable, match="does not answer"):
            await given.ask(2, "POST", "/v1/x", monotonic() + 60, content=b"{}")
        assert directory.is_suspect(2)

    monkeypatch.setattr(peers, "FORWARD_TIMEOUT", 0.3)
    asked(answer, ask, url.format(port=free_port()))


def test_a_request_behind_too_many_others_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_CONNECTIONS", 2)

    async def ask(given: PeerClient, _: InstanceDirectory, heads: list[str]) -> None:
        async def one() -> PeerResponse:
            return await given.ask(2, "GET", "/v1/x", monotonic() + 60)

        found = await asyncio.gather(*(one() for _ in range(3)), return_exceptions=True)
        assert all(isinstance(one, PeerUnavailable) for one in found), found
        assert ["too many" in str(one) for one in found].count(True) == 1, found
        assert len(heads) == 2

    asked("", ask)


def test_owners_of_partitions_are_those_last_reported_by_instances() -> None:
    directory = InstanceDirectory(None, ViewInstanceRow("views-1", 1, "a", ""), dict)  # type: ignore[arg-type]
    for loaded, others in (([0, 1], [2]), ([0], []), ([1, 2], [2])):
        directory._rows = {2: ViewInstanceRow("views-2", 2, "b", "", partitions={"v": {"count": 3, "loaded": loaded}})}
        assert directory.instances_with("v", 1) == others
        assert directory.instances_with("other", 1) == []
