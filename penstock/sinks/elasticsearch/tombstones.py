"""What was deleted, with its version: an older upsert that comes later brings nothing back.

Elasticsearch itself forgets the version of a delete after a while, and with a restart. Beside deletes there are upserts
that are ahead of their record's own time, with the place of that: a tombstone behind them has a time before theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from elasticsearch import BadRequestError, NotFoundError
from elasticsearch import Elasticsearch as Client

from penstock.errors import SinkError
from penstock.sinks.core.document import OFFSET_BITS
from penstock.sinks.core.latest_per_key import Ahead, Row
from penstock.sinks.elasticsearch.bulk import Bulk, Outcome, item
from penstock.sinks.elasticsearch.client import asking, found
from penstock.sinks.elasticsearch.config import LIMITS, Elasticsearch
from penstock.sinks.elasticsearch.indexes import PAGE

MAPPINGS = {"dynamic": "false", "properties": {"at": {"type": "date"}}}
SETTINGS = {"index": {"auto_expand_replicas": "0-1"}}


class Graves:
    """One index: by the id of a document that was deleted, with the version of that: `id`, and `at`, when it was; of an
    upsert that is ahead also `place`."""

    def __init__(self, client: Client, bulk: Bulk, output: Elasticsearch) -> None:
        self._client = client
        self._bulk = bulk
        self._output = output
        self._made = False

    def prepare(self) -> None:
        if self._made:
            return
        self.restore()
        self._made = True

    def restore(self) -> None:
        """Make the index, if it is not there."""
        index = self._output.graves
        with asking(f"to make index {index}"):
            try:
                self._client.indices.create(index=index, mappings=MAPPINGS, settings=SETTINGS)
            except BadRequestError as e:
                if e.error != "resource_already_exists_exception":
                    raise

    def over(self, rows: Sequence[Row]) -> set[int]:
        """The numbers of rows that are older than the delete of their id."""
        versions = {doc["_source"]["id"]: doc["_version"] for doc in self._dug([row.id for row in rows])}
        return {row.number for row in rows if versions.get(row.id, -1) > row.version}

    def ahead(self, ids: Sequence[str]) -> dict[str, Ahead]:
        """Of ids the upsert that is remembered as ahead."""
        dug = ((doc["_version"], doc["_source"]) for doc in self._dug(ids))
        return {one["id"]: Ahead(version, tuple(one["place"])) for version, one in dug if "place" in one}

    def _dug(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(ids), PAGE):
            # Of an id without a grave nothing is answered at all.
            docs = found(
                self._client,
                "to look for what was deleted",
                "docs._source,docs._version",
                index=self._output.graves,
                ids=ids[start : start + PAGE],
            )
            yield from (doc for doc in docs if "error" not in doc)

    def dig(self, rows: Sequence[Row], now: datetime) -> Outcome:
        """Remember what is deleted, before it is, or which upserts are ahead."""
        at = int(now.timestamp() * 1000)
        made = Outcome()
        items = []
        for row in rows:
            # Kept for as long as a time that is ahead may matter.
            kept: dict[str, Any] = {"id": row.id, "at": at}
            if not row.deleted:
                kept |= {"at": max(at, row.version >> OFFSET_BITS), "place": row.place}
            items.append(item("index", row.number, self._output.graves, row.id, row.version, orjson.dumps(kept)))
        self._bulk.run(items, made)
        if made.refused:
            why = next(iter(made.refused.values()))
            raise SinkError(
                f"{self._output.graves} takes no graves", got=why, hint="delete that index if it is another's"
            )
        return made

    def expire(self, now: datetime) -> int:
        """Forget what was deleted long ago; how many."""
        before = int((now - timedelta(days=LIMITS.grave_days)).timestamp() * 1000)
        with asking("to forget what was deleted long ago"):
            try:
                hits = self._client.search(
                    index=self._output.graves,
                    query={"range": {"at": {"lt": before}}},
                    size=PAGE,
                    source=False,
                    version=True,
                )["hits"]["hits"]
            except NotFoundError:
                return 0
        old = [item("delete", 0, self._output.graves, hit["_id"], hit["_version"], None) for hit in hits]
        made = Outcome()
        self._bulk.run(old, made)
        return made.written
