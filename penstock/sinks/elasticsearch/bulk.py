"""Bulk requests to Elasticsearch, and what the answers mean for each document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from elasticsearch import ApiError
from elasticsearch import Elasticsearch as Client

from penstock.errors import SinkError, Wait
from penstock.sinks.core.bulk import (
    OK,
    BulkOutcome,
    BulkWriter,
    ItemResult,
    ItemStatus,
    RequestRejected,
    SinkBatchResult,
)
from penstock.sinks.elasticsearch.client import (
    BUSY,
    SHARD_TIMEOUT,
    error_body,
    error_for_status,
    error_reason,
    request_errors,
    transport_errors,
)
from penstock.sinks.elasticsearch.config import LIMITS

TRIES = 6
PAUSE_S = 0.1
# The fault is the index's, or this sink's right to it, and no document's.
INDEX_ERRORS = frozenset({"cluster_block_exception", "index_closed_exception", "security_exception"})
# Errors of one document; those of all other types are classified by their HTTP status.
ITEM_STATUSES = {
    "version_conflict_engine_exception": ItemStatus.CONFLICT,
    "index_not_found_exception": ItemStatus.RETRY,
}
LOAD_ERRORS = frozenset({"es_rejected_execution_exception", "circuit_breaking_exception"})
# Elasticsearch also says that it is busy if one request alone is more than it ever takes.
TOO_LARGE = re.compile(r"operation_bytes=(\d+), max_\w+_bytes=(\d+)|would be \[(\d+)/.*?limit of \[(\d+)/")


@dataclass(frozen=True, slots=True, eq=False)
class IndexAction:
    """Writes a document, or deletes one if it is None, unless the index has a greater version of it.

    Attributes:
        row: its row's number in the batch.
        index: to write to.
        id: of the document.
        version: of the document, or of its delete.
        document: as JSON.
    """

    row: int
    index: str
    id: str
    version: int
    document: bytes | None

    @property
    def header(self) -> bytes:
        """The first line of the request."""
        meta = {"_index": self.index, "_id": self.id, "version": self.version, "version_type": "external_gte"}
        return orjson.dumps({"delete" if self.document is None else "index": meta})

    @property
    def size(self) -> int:
        return len(self.header) + len(self.document or b"") + 2


class ElasticsearchBulk:
    """Sends documents. restore_index: creates an index again that somebody has deleted."""

    def __init__(self, client: Client, parallel: int, restore_index: Callable[[str], None]) -> None:
        self._bulk = BulkWriter[IndexAction](
            parallel, LIMITS.rows, LIMITS.request_bytes, TRIES, PAUSE_S, self._wait_unless_healthy
        )
        self._client = client
        self._restore_index = restore_index

    def write(self, actions: Sequence[IndexAction], result: SinkBatchResult) -> BulkOutcome[IndexAction]:
        """See `BulkWriter.write`. A conflict is a document of which the index has a newer version."""
        return self._bulk.write(actions, result, self._request)

    def close(self) -> None:
        self._bulk.close()

    def _request(self, actions: Sequence[IndexAction]) -> list[ItemResult]:
        lines: Any = [line for one in actions for line in (one.header, one.document) if line is not None]
        try:
            with transport_errors():
                answer: object = self._client.bulk(
                    operations=lines, timeout=SHARD_TIMEOUT, filter_path="errors,items.*.status,items.*.error"
                ).body
        except ApiError as e:
            error = error_body(e.body)
            reason = error_reason(error or {"type": HTTPStatus(e.status_code).phrase, "reason": str(e.body)[:200]})
            if e.status_code in BUSY and not _is_too_large(error):
                return [ItemResult(ItemStatus.RETRY, reason)] * len(actions)
            is_invalid = e.status_code == HTTPStatus.BAD_REQUEST and error.get("type", "") not in {"", *INDEX_ERRORS}
            if is_invalid or e.status_code in {*BUSY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}:
                raise RequestRejected(reason) from e
            raise error_for_status("a request", e.status_code, e.body) from e
        items = answer.get("items", ()) if isinstance(answer, Mapping) else ()
        if len(items) != len(actions):
            raise SinkError("the server is not an Elasticsearch", got=str(answer)[:200])
        results = [one for item in items for one in item.values()]
        return [
            self._result(one, result["status"], result["error"]) if result.get("error") else OK
            for one, result in zip(actions, results, strict=True)
        ]

    def _result(self, one: IndexAction, status: int, error: Mapping[str, Any]) -> ItemResult:
        kind = error.get("type", "")
        if kind in INDEX_ERRORS and status not in BUSY:
            raise error_for_status(f"to write to {one.index}", status, {"error": error})
        if kind == "index_not_found_exception":
            self._restore_index(one.index)
        return ItemResult(ITEM_STATUSES.get(kind) or _status(status, error), error_reason(error))

    def _wait_unless_healthy(self, left: Sequence[tuple[IndexAction, ItemResult]]) -> None:
        busy = [result for _, result in left if result.status is ItemStatus.RETRY]
        # A document on which a healthy server fails each time would block all others.
        if busy or not self._is_healthy(left[0][0].index):
            reason = (busy or [left[0][1]])[0].reason
            raise Wait("Elasticsearch cannot take some documents at present", got=reason, seconds=1.0)

    def _is_healthy(self, index: str) -> bool:
        with request_errors("to read its health"):
            health = self._client.cluster.health(index=index, wait_for_status="yellow", timeout="5s")
            return not health["timed_out"]


def _status(status: int, error: Mapping[str, Any]) -> ItemStatus:
    if status in BUSY and not _is_too_large(error):
        return ItemStatus.RETRY
    return ItemStatus.FAILED if status >= 500 and status not in BUSY else ItemStatus.REFUSED


def _is_too_large(error: Mapping[str, Any]) -> bool:
    """Whether a request was refused for its own size, whatever else the server is doing."""
    if error.get("type") not in LOAD_ERRORS:
        return False
    if match := TOO_LARGE.search(str(error.get("reason", ""))):
        size, limit = (int(number) for number in match.groups() if number is not None)
        return size > limit
    wanted, most = error.get("bytes_wanted"), error.get("bytes_limit")
    return isinstance(wanted, int) and isinstance(most, int) and wanted > most
