"""Tombstones in Elasticsearch, which itself forgets the version of a delete after a while, and when it restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Any

import orjson
from elasticsearch import BadRequestError, NotFoundError
from elasticsearch import Elasticsearch as Client
from elasticsearch.helpers import scan
from more_itertools import batched

from penstock.errors import SinkError
from penstock.sinks.core.bulk import SinkBatchResult
from penstock.sinks.core.keyed_writer import tombstone_ms
from penstock.sinks.core.latest_per_key import Position, VersionedRow
from penstock.sinks.elasticsearch.bulk import ElasticsearchBulk, IndexAction
from penstock.sinks.elasticsearch.client import get_documents, request_errors
from penstock.sinks.elasticsearch.config import LIMITS
from penstock.sinks.elasticsearch.indexes import EXISTS, PAGE

MAPPINGS = {"dynamic": "false", "properties": {"at": {"type": "date"}}}
SETTINGS = {"index": {"auto_expand_replicas": "0-1"}}
# Seconds after which a batch waits for no further page of tombstones that are removed.
MAX_EXPIRY_S = 2.0


class TombstoneIndex:
    """The index of a sink's tombstones.

    A document has the id and version of what was deleted: `id`, and `at`, when it was. That of a future upsert also has
    `position`.
    """

    def __init__(self, client: Client, bulk: ElasticsearchBulk, index: str, clock: Callable[[], datetime]) -> None:
        self._client, self._bulk, self._index, self._clock = client, bulk, index, clock
        self._exists = False

    def create(self) -> None:
        """Create the index unless it exists, or an alias of its name."""
        with request_errors(f"to make index {self._index}"):
            try:
                self._client.indices.create(index=self._index, mappings=MAPPINGS, settings=SETTINGS)
            except BadRequestError as e:
                if e.error not in EXISTS:
                    raise
        self._exists = True

    def read(self, ids: Sequence[str]) -> Iterator[tuple[str, int, Position | None]]:
        """See `Tombstones`."""
        if not self._exists:
            # Without the index, the answer to each page has an error for each of its ids.
            with request_errors("to read tombstones"):
                self._exists = bool(self._client.indices.exists(index=self._index))
        for start in range(0, len(ids) if self._exists else 0, PAGE):
            # The answer leaves out ids that have no document.
            docs = get_documents(
                self._client, "to read tombstones", "docs._source,docs._version",
                index=self._index, ids=ids[start : start + PAGE],
            )  # fmt: skip
            for doc in docs:
                if "error" not in doc:
                    position = doc["_source"].get("position")
                    yield doc["_source"]["id"], doc["_version"], tuple(position) if position else None

    def record(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        """See `Tombstones`."""
        if not self._exists:
            self.create()
        now = _ms(self._clock())
        actions = []
        for row in rows:
            fields: dict[str, Any] = {"id": row.id, "at": tombstone_ms(row, now)}
            if not row.deleted:
                fields["position"] = row.position
            actions.append(IndexAction(row.number, self._index, row.id, row.version, orjson.dumps(fields)))
        if refused := self._bulk.write(actions, result).refused:
            raise SinkError(
                f"{self._index} takes no tombstones",
                got=next(iter(refused.values())),
                hint="delete that index if it is another's",
            )

    def expire(self) -> bool:
        """Forget deletes that are older than `tombstone_days`; False if there are more than the time sufficed for."""
        old = {"range": {"at": {"lt": _ms(self._clock() - timedelta(days=LIMITS.tombstone_days))}}}
        deadline = time.monotonic() + MAX_EXPIRY_S
        hits: Any = scan(
            self._client, {"query": old}, index=self._index, size=PAGE, source=False, version=True, raise_on_error=False
        )
        with request_errors("to expire tombstones"), suppress(NotFoundError), closing(hits):
            for page in batched(hits, PAGE):
                deletes = [IndexAction(0, self._index, hit["_id"], hit["_version"], None) for hit in page]
                self._bulk.write(deletes, SinkBatchResult())
                if time.monotonic() > deadline:
                    return False
        return True


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
