"""Bulk requests: bounded, several at once, and the outcome of every item read."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

import orjson
from elasticsearch import ApiError
from elasticsearch import Elasticsearch as Client

from penstock.errors import PenstockError, SinkError, Wait
from penstock.sinks.core.chunking import parts
from penstock.sinks.elasticsearch.client import BUSY, PATIENCE, asking, error_of, meant, reaching, reason
from penstock.sinks.elasticsearch.config import LIMITS

TRIES = 6
# Before the second try, doubled before each later one.
PAUSE = 0.1
# The index, or this sink's right to it, is to blame, and no document of it.
CONDITIONS = frozenset({"cluster_block_exception", "index_closed_exception", "security_exception"})
LOAD = frozenset({"es_rejected_execution_exception", "circuit_breaking_exception"})
# Elasticsearch calls it too busy when one request alone is more than it ever takes.
TOO_LARGE = re.compile(r"operation_bytes=(\d+), max_\w+_bytes=(\d+)|would be \[(\d+)/.*?limit of \[(\d+)/")


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One document of a request. row: its number in the batch."""

    row: int
    index: str
    head: bytes
    body: bytes | None

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body or b"") + 2


def item(action: Literal["index", "delete"], row: int, index: str, key: str, version: int, body: bytes | None) -> Item:
    meta = {"_index": index, "_id": key, "version": version, "version_type": "external_gte"}
    return Item(row, index, orjson.dumps({action: meta}), body)


@dataclass
class Outcome:
    """What became of items. older: those that the store has a newer version of; refused: why, by row's number."""

    written: int = 0
    older: list[Item] = field(default_factory=list)
    retried: int = 0
    bytes: int = 0
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        self.written += other.written
        self.older += other.older
        self.retried += other.retried
        self.bytes += other.bytes
        self.refused |= other.refused


class Bulk:
    """Sends items. restore: makes an index that is gone again."""

    def __init__(self, client: Client, parallel: int, restore: Callable[[str], None]) -> None:
        self._client = client
        self._restore = restore
        self._pool = ThreadPoolExecutor(max(1, parallel), thread_name_prefix="bulk")

    def run(self, items: Sequence[Item], made: Outcome) -> None:
        """Write items; it returns when the outcome of each is known, and is in `made`.

        Wait if the store had too much to do for some of them, a few times, SinkError if it refuses all: the others may
        be written.
        """
        outcomes = [(part, Outcome()) for part in parts(items, LIMITS.rows, LIMITS.request_bytes)]
        failed, stopped = list[PenstockError](), threading.Event()

        def settle(part: Sequence[Item], outcome: Outcome) -> None:
            try:
                if not stopped.is_set():
                    self._settle(part, outcome)
            except PenstockError:
                # Each request to a server that hangs would take its time.
                stopped.set()
                raise

        for done in [self._pool.submit(settle, part, outcome) for part, outcome in outcomes]:
            try:
                done.result()
            except PenstockError as e:
                failed.append(e)
        for _, outcome in outcomes:
            made.add(outcome)
        if failed:
            raise next((e for e in failed if not isinstance(e, Wait)), failed[0])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _settle(self, items: Sequence[Item], made: Outcome) -> None:
        for tried in range(TRIES):
            if tried:
                made.retried += len(items)
                time.sleep(PAUSE * 2 ** (tried - 1) * random.uniform(0.5, 1.5))
            busy: dict[Item, str] = {}
            broken: dict[Item, str] = {}
            for one, status, error in self._send(items, made):
                kind = error.get("type")
                if not error:
                    made.written += 1
                elif kind == "version_conflict_engine_exception":
                    made.older.append(one)
                elif kind in CONDITIONS and status not in BUSY:
                    raise meant(f"to write to {one.index}", status, {"error": error})
                elif kind == "index_not_found_exception":
                    self._restore(one.index)
                    busy[one] = reason(error)
                elif status in BUSY and not _too_large(error):
                    busy[one] = reason(error)
                elif status >= HTTPStatus.INTERNAL_SERVER_ERROR and status not in BUSY:
                    broken[one] = reason(error)
                else:
                    made.refused[one.row] = reason(error)
            items = [*busy, *broken]
            if not items:
                return
        if not busy and self._healthy(items[0].index):
            # A document on which a healthy server fails each time would hold up all others.
            made.refused |= {one.row: why for one, why in broken.items()}
            return
        why = next(iter({**busy, **broken}.values()))
        raise Wait("Elasticsearch takes some documents not now", got=why, seconds=1.0)

    def _send(self, items: Sequence[Item], made: Outcome) -> Iterator[tuple[Item, int, Mapping[str, Any]]]:
        """Each item with its status and error. A request that is refused as a whole is halved, to the item to blame."""
        lines = [line for one in items for line in (one.head, one.body) if line is not None]
        body = b"\n".join([*lines, b""])
        made.bytes += len(body)
        try:
            answer = self._post(body)
        except ApiError as e:
            if _blamed(e) and len(items) > 1:
                middle = len(items) // 2
                yield from self._send(items[:middle], made)
                yield from self._send(items[middle:], made)
            elif _blamed(e) or e.status_code in BUSY:
                status = e.status_code if e.status_code in BUSY else HTTPStatus.BAD_REQUEST
                said = error_of(e.body) or {"type": HTTPStatus(e.status_code).phrase, "reason": str(e.body)[:200]}
                yield from ((one, status, said) for one in items)
            else:
                raise meant("a request", e.status_code, e.body) from e
            return
        told = answer.get("items", ()) if isinstance(answer, Mapping) else ()
        if len(told) != len(items):
            raise SinkError("what answers is no Elasticsearch", got=str(answer)[:200])
        for one, named in zip(items, told, strict=True):
            [found] = named.values()
            yield one, found["status"], found.get("error") or {}

    def _post(self, body: bytes) -> object:
        with reaching():
            return self._client.perform_request(
                "POST",
                "/_bulk",
                params={"filter_path": "errors,items.*.status,items.*.error", "timeout": PATIENCE},
                headers={"accept": "application/json", "content-type": "application/x-ndjson"},
                body=body,
            ).body

    def _healthy(self, index: str) -> bool:
        with asking("to look at its health"):
            found = self._client.cluster.health(index=index, wait_for_status="yellow", timeout="5s")
            return not found["timed_out"]


def _blamed(e: ApiError) -> bool:
    """Whether a request was refused for what is in it."""
    if e.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return True
    error = error_of(e.body)
    if e.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        return _too_large(error)
    return e.status_code == HTTPStatus.BAD_REQUEST and bool(error) and error.get("type") not in CONDITIONS


def _too_large(error: Mapping[str, Any]) -> bool:
    """Whether it was refused for its own size, whatever else the server does."""
    if error.get("type") not in LOAD:
        return False
    if found := TOO_LARGE.search(str(error.get("reason", ""))):
        size, most = (int(number) for number in found.groups() if number is not None)
        return size > most
    wanted, limit = error.get("bytes_wanted"), error.get("bytes_limit")
    return isinstance(wanted, int) and isinstance(limit, int) and wanted > limit
