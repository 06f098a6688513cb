"""Bulk requests to Elasticsearch, and what the answers mean for each document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import orjson
from elasticsearch import ApiError
from elasticsearch import Elasticsearch as Client

from penstock.errors import SinkError, Wait
from penstock.sinks.core.bulk import (
    OK,
    BulkOutcome,
    BulkSettings,
    BulkWriter,
    ItemResult,
    ItemStatus,
    RequestRejected,
    refuse_all,
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
LOAD_ERRORS = frozenset({"es_rejected_execution_exception", "circuit_breaking_exception"})
# Elasticsearch also says that it is busy if one request alone is more than it ever takes.
TOO_LARGE = re.compile(r"operation_bytes=(\d+), max_\w+_bytes=(\d+)|would be \[(\d+)/.*?limit of \[(\d+)/")


@dataclass(frozen=True, slots=True, eq=False)
class IndexAction:
    """One document of a bulk request. row: its row's number in the batch; header, document: lines of the request."""

    row: int
    index: str
    header: bytes
    document: bytes | None

    @property
    def size(self) -> int:
        return len(self.header) + len(self.document or b"") + 2


def action(
    kind: Literal["index", "delete"], row: int, index: str, key: str, version: int, document: bytes | None
) -> IndexAction:
    """A write or delete of a document, unless the index has a greater version of it."""
    meta = {"_index": index, "_id": key, "version": version, "version_type": "external_gte"}
    return IndexAction(row, index, orjson.dumps({kind: meta}), document)


class ElasticsearchBulk:
    """Sends documents. restore_index: creates an index again that somebody has deleted."""

    def __init__(self, client: Client, parallel: int, restore_index: Callable[[str], None]) -> None:
        settings = BulkSettings(parallel, LIMITS.rows, LIMITS.request_bytes, TRIES, PAUSE_S)
        self._bulk = BulkWriter[IndexAction](settings, self._refuse_or_wait)
        self._client = client
        self._restore_index = restore_index

    def write(self, actions: Sequence[IndexAction], outcome: BulkOutcome[IndexAction]) -> None:
        """See `BulkWriter.write`. A conflict is a document of which the index has a newer version."""
        self._bulk.write(actions, outcome, self._request)

    def close(self) -> None:
        self._bulk.close()

    def _request(self, actions: Sequence[IndexAction]) -> list[ItemResult]:
        lines = [line for one in actions for line in (one.header, one.document) if line is not None]
        try:
            answer = self._post(b"\n".join([*lines, b""]))
        except ApiError as e:
            error = error_body(e.body) or {"type": HTTPStatus(e.status_code).phrase, "reason": str(e.body)[:200]}
            if _is_rejected(e):
                raise RequestRejected(ItemResult(ItemStatus.REFUSED, error_reason(error))) from e
            if e.status_code in BUSY:
                return [ItemResult(ItemStatus.RETRY, error_reason(error))] * len(actions)
            raise error_for_status("a request", e.status_code, e.body) from e
        items = answer.get("items", ()) if isinstance(answer, Mapping) else ()
        if len(items) != len(actions):
            raise SinkError("the server is not an Elasticsearch", got=str(answer)[:200])
        results = []
        for one, by_kind in zip(actions, items, strict=True):
            [item] = by_kind.values()
            results.append(self._result(one, item["status"], item.get("error") or {}))
        return results

    def _result(self, one: IndexAction, status: int, error: Mapping[str, Any]) -> ItemResult:
        kind = error.get("type")
        if not error:
            return OK
        if kind == "version_conflict_engine_exception":
            return ItemResult(ItemStatus.CONFLICT)
        if kind in INDEX_ERRORS and status not in BUSY:
            raise error_for_status(f"to write to {one.index}", status, {"error": error})
        reason = error_reason(error)
        if kind == "index_not_found_exception":
            self._restore_index(one.index)
            return ItemResult(ItemStatus.RETRY, reason)
        if status in BUSY and not _is_too_large(error):
            return ItemResult(ItemStatus.RETRY, reason)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status not in BUSY:
            return ItemResult(ItemStatus.FAILED, reason)
        return ItemResult(ItemStatus.REFUSED, reason)

    def _refuse_or_wait(self, left: Sequence[tuple[IndexAction, ItemResult]]) -> dict[int, str]:
        busy = [result for _, result in left if result.status is ItemStatus.RETRY]
        if not busy and self._is_healthy(left[0][0].index):
            # A document on which a healthy server fails each time would block all others.
            return refuse_all(left)
        reason = (busy or [left[0][1]])[0].reason
        raise Wait("Elasticsearch cannot take some documents at present", got=reason, seconds=1.0)

    def _post(self, body: bytes) -> object:
        with transport_errors():
            return self._client.perform_request(
                "POST",
                "/_bulk",
                params={"filter_path": "errors,items.*.status,items.*.error", "timeout": SHARD_TIMEOUT},
                headers={"accept": "application/json", "content-type": "application/x-ndjson"},
                body=body,
            ).body

    def _is_healthy(self, index: str) -> bool:
        with request_errors("to read its health"):
            health = self._client.cluster.health(index=index, wait_for_status="yellow", timeout="5s")
            return not health["timed_out"]


def _is_rejected(e: ApiError) -> bool:
    """Whether a request was refused because of what is in it."""
    if e.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return True
    error = error_body(e.body)
    if e.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        return _is_too_large(error)
    return e.status_code == HTTPStatus.BAD_REQUEST and bool(error) and error.get("type") not in INDEX_ERRORS


def _is_too_large(error: Mapping[str, Any]) -> bool:
    """Whether a request was refused for its own size, whatever else the server is doing."""
    if error.get("type") not in LOAD_ERRORS:
        return False
    if match := TOO_LARGE.search(str(error.get("reason", ""))):
        size, limit = (int(number) for number in match.groups() if number is not None)
        return size > limit
    wanted, most = error.get("bytes_wanted"), error.get("bytes_limit")
    return isinstance(wanted, int) and isinstance(most, int) and wanted > most
