"""The other instances: which partitions they have, by the control database, and requests to them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from yarl import URL

from penstock.control.repositories.view_instances import Sample, ViewInstanceRow, ViewInstances, ViewPartitions
from penstock.errors import ControlError
from penstock.settings import settings
from penstock.views.cluster.partition_assignment import owner_order
from penstock.views.cluster.protocol import DEADLINE, FORWARDED, LAG, SILENT_MS, PeerUnavailable
from penstock.views.store.sqlite import QueryTimeout

log = logging.getLogger(__name__)

REPORT_EVERY = 1.0
# Prometheus looks less often.
COUNT_EVERY = 5.0
# Seconds in which an instance that did not answer is asked last.
SUSPECT_FOR = 2.0
# Seconds: another instance may have the partition too. A query that no other can
# answer has all of its time.
FORWARD_TIMEOUT = 2.0
MAX_CONNECTIONS = 32
# Seconds that a request waits for a free connection.
QUEUE_TIMEOUT = 0.25
# Seconds after which a connection without requests is closed: before the other instance closes it.
IDLE_TIMEOUT = 5.0


@dataclass(frozen=True)
class PeerResponse:
    status: int
    content: bytes
    headers: Mapping[str, str]


class InstanceDirectory:
    """Which instance has which partitions loaded, looked up every second in a thread of its own. holds, asked: of this
    one, the second being what it has counted of its requests."""

    def __init__(
        self,
        instances: ViewInstances,
        own: ViewInstanceRow,
        holds: Callable[[], dict[str, ViewPartitions]],
        samples: Callable[[], list[Sample]] = list,
    ) -> None:
        self.own = own
        self._instances, self._holds, self._samples = instances, holds, samples
        self._asked_at = float("-inf")
        self._rows: dict[int, ViewInstanceRow] = {}
        self._silent: set[int] = set()
        self._suspects: dict[int, float] = {}
        # The loaded partitions of a view in an instance, as it reported them and as a set.
        self._loaded: dict[tuple[int, str], tuple[list[int], frozenset[int]]] = {}
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="instances", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Leave, so that the others ask here no more."""
        self._leaving.set()
        self._thread.join(5.0)
        try:
            self._instances.leave(self.own)
        except ControlError as e:
            log.warning("the instance could not say that it leaves: %s", e)

    def url(self, number: int) -> str:
        return self._rows[number].url

    @property
    def rows(self) -> list[ViewInstanceRow]:
        return list(self._rows.values())

    def count(self, view: str) -> int:
        """Partitions of a view's topic, as another instance knows; 0 if none does."""
        return max((row.partitions[view]["count"] for row in self._rows.values() if view in row.partitions), default=0)

    def instances_with(self, view: str, partition: int) -> list[int]:
        """The other instances that have a partition, in the order in which they own it, the doubtful ones last."""
        numbers = [
            number
            for number, row in self._rows.items()
            if number != self.own.number and view in row.partitions and partition in self._set(row, view)
        ]
        return sorted(owner_order(partition, numbers, max(1, settings().views_instances)), key=self.is_suspect)

    def _set(self, row: ViewInstanceRow, view: str) -> frozenset[int]:
        loaded = row.partitions[view]["loaded"]
        cached = self._loaded.get((row.number, view))
        if cached is None or cached[0] is not loaded:
            cached = self._loaded[row.number, view] = loaded, frozenset(loaded)
        return cached[1]

    def is_suspect(self, number: int) -> bool:
        return number in self._silent or self._suspects.get(number, 0.0) > time.monotonic()

    def suspect(self, number: int) -> None:
        self._suspects[number] = time.monotonic() + SUSPECT_FOR

    def look(self) -> None:
        now, rows = self._instances.report(
            ViewInstanceRow(
                self.own.name, self.own.number, self.own.incarnation, self.own.url, partitions=self._holds()
            )
        )
        self._silent = {row.number for row in rows if now - row.alive_at > SILENT_MS}
        self._rows = {row.number: row for row in rows}
        if time.monotonic() - self._asked_at > COUNT_EVERY:
            self._instances.report_request_metrics(self.own.name, self._samples())
            self._asked_at = time.monotonic()

    def _look_on(self) -> None:
        while not self._leaving.is_set():
            try:
                self.look()
            except ControlError as e:
                # The others may be well: what was known of them stands.
                log.warning("instances of the views are not known anew: %s", e)
            except Exception:
                log.exception("instances of the views are not known anew")
            self._leaving.wait(REPORT_EVERY)


class PeerClient:
    """Asks other instances, by connections that are kept. To be made in the loop that answers."""

    def __init__(self, directory: InstanceDirectory, token: str) -> None:
        self._directory = directory
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._session = ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=IDLE_TIMEOUT),
            headers={"authorization": f"Bearer {token}"} if token else {},
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            cookie_jar=DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self,
        number: int,
        method: str,
        path: str,
        deadline: float,
        *,
        content: bytes | None = None,
        last: bool = False,
    ) -> PeerResponse:
        """What another instance answers. path: with what follows the `?`; deadline: monotonic; last: of a query that
        nobody else can answer. PeerUnavailable; QueryTimeout if there is no time left."""
        async with self._turn(number, deadline - time.monotonic()):
            remaining = deadline - time.monotonic()
            is_last = last or remaining <= FORWARD_TIMEOUT
            remaining = remaining if is_last else FORWARD_TIMEOUT
            headers = {FORWARDED: self._directory.own.name, DEADLINE: str(max(1, int(remaining * 1000)))}
            if content is not None:
                headers["content-type"] = "application/json"
            try:
                # The path is quoted, and no second time.
                url = URL(self._directory.url(number) + path, encoded=True)
                async with self._session.request(
                    method, url, data=content, headers=headers, allow_redirects=False,
                    timeout=ClientTimeout(total=max(0.001, remaining)),
                ) as response:  # fmt: skip
                    answer = PeerResponse(response.status, await response.read(), response.headers)
            except (ClientError, KeyError, OSError, ValueError) as e:
                self._directory.suspect(number)
                if is_last and isinstance(e, TimeoutError):
                    hint = "ask again, or give it more time"
                    raise QueryTimeout(
                        "another instance did not answer in time", got=f"views-{number}", hint=hint
                    ) from e
                raise PeerUnavailable(
                    "an instance of the views does not answer", got=f"views-{number}: {type(e).__name__}"
                ) from e
        # An instance of other code may not have the view at all: that says nothing of a key.
        unknown = answer.status == 404 and LAG not in answer.headers
        if answer.status in (421, 503) or unknown:
            raise PeerUnavailable("an instance of the views cannot answer now", got=f"views-{number}: {answer.status}")
        return answer

    @asynccontextmanager
    async def _turn(self, number: int, remaining: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(max(0.001, min(remaining, QUEUE_TIMEOUT))):
                await self._free.acquire()
        except TimeoutError as e:
            raise PeerUnavailable("too many requests wait for another instance", got=f"views-{number}") from e
        try:
            yield
        finally:
            self._free.release()
