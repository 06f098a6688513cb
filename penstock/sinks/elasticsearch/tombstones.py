"""Remembers the versions of deleted documents, so that no older upsert that comes later brings one back.

Elasticsearch itself forgets the version of a delete after a while, and when it restarts. The index also remembers
future upserts, with the position of their record: a tombstone behind them has an earlier time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from elasticsearch import BadRequestError, NotFoundError
from elasticsearch import Elasticsearch as Client

from penstock.errors import SinkError
from penstock.sinks.core.bulk import BulkOutcome
from penstock.sinks.core.document import OFFSET_BITS
from penstock.sinks.core.latest_per_key import FutureUpsert, VersionedRow
from penstock.sinks.elasticsearch.bulk import ElasticsearchBulk, IndexAction, action
from penstock.sinks.elasticsearch.client import get_documents, request_errors
from penstock.sinks.elasticsearch.config import LIMITS, Elasticsearch
from penstock.sinks.elasticsearch.indexes import PAGE

MAPPINGS = {"dynamic": "false", "properties": {"at": {"type": "date"}}}
SETTINGS = {"index": {"auto_expand_replicas": "0-1"}}


class TombstoneIndex:
    """The index of a sink's tombstones.

    A document has the id and version of what was deleted: `id`, and `at`, when it was. That of a future upsert also has
    `position`.
    """

    def __init__(self, client: Client, bulk: ElasticsearchBulk, output: Elasticsearch) -> None:
        self._client = client
        self._bulk = bulk
        self._index = output.tombstone_index
        self._created = False

    def ensure(self) -> None:
        """Create the index, the first time."""
        if not self._created:
            self.create()
            self._created = True

    def create(self) -> None:
        """Create the index unless it exists."""
        with request_errors(f"to make index {self._index}"):
            try:
                self._client.indices.create(index=self._index, mappings=MAPPINGS, settings=SETTINGS)
            except BadRequestError as e:
                if e.error != "resource_already_exists_exception":
                    raise

    def stale_rows(self, rows: Sequence[VersionedRow]) -> set[int]:
        """The numbers of rows that are older than the delete of their id."""
        versions = {doc["_source"]["id"]: doc["_version"] for doc in self._get([row.id for row in rows])}
        return {row.number for row in rows if versions.get(row.id, -1) > row.version}

    def future_upserts(self, ids: Sequence[str]) -> dict[str, FutureUpsert]:
        """The remembered future upserts of ids."""
        documents = ((doc["_version"], doc["_source"]) for doc in self._get(ids))
        return {
            one["id"]: FutureUpsert(version, tuple(one["position"])) for version, one in documents if "position" in one
        }

    def _get(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(ids), PAGE):
            # The answer leaves out ids that have no document.
            docs = get_documents(
                self._client, "to read tombstones", "docs._source,docs._version",
                index=self._index, ids=ids[start : start + PAGE],
            )  # fmt: skip
            yield from (doc for doc in docs if "error" not in doc)

    def record(self, rows: Sequence[VersionedRow], now: datetime) -> BulkOutcome[IndexAction]:
        """Remember deletes, before they are made, or future upserts."""
        self.ensure()
        at = int(now.timestamp() * 1000)
        outcome = BulkOutcome[IndexAction]()
        actions = []
        for row in rows:
            fields: dict[str, Any] = {"id": row.id, "at": at}
            if not row.deleted:
                # Kept as long as the later time may matter.
                fields |= {"at": max(at, row.version >> OFFSET_BITS), "position": row.position}
            actions.append(action("index", row.number, self._index, row.id, row.version, orjson.dumps(fields)))
        self._bulk.write(actions, outcome)
        if outcome.refused:
            raise SinkError(
                f"{self._index} takes no tombstones",
                got=next(iter(outcome.refused.values())),
                hint="delete that index if it is another's",
            )
        return outcome

    def expire(self, now: datetime) -> int:
        """Forget deletes that are older than `tombstone_days`; how many."""
        before = int((now - timedelta(days=LIMITS.tombstone_days)).timestamp() * 1000)
        with request_errors("to expire tombstones"):
            try:
                hits = self._client.search(
                    index=self._index,
                    query={"range": {"at": {"lt": before}}},
                    size=PAGE,
                    source=False,
                    version=True,
                )["hits"]["hits"]
            except NotFoundError:
                return 0
        outcome = BulkOutcome[IndexAction]()
        old = [action("delete", 0, self._index, hit["_id"], hit["_version"], None) for hit in hits]
        self._bulk.write(old, outcome)
        return outcome.written
