"""The versions of a sink's collection: collections of other names, of which one is renamed to the sink's collection.

`<collection>.version-<id>` is built, and takes the name of the collection by a rename, which readers see at once.
`<collection>.version-before` is a copy of what was shown before, made while nothing is written. Each has its tombstones
beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pymongo.database import Database

from penstock.errors import PenstockError
from penstock.model.output import Output
from penstock.sinks.core.connections import required_url
from penstock.sinks.mongodb.bulk import MongoRequests
from penstock.sinks.mongodb.collections import CollectionManager
from penstock.sinks.mongodb.config import TOMBSTONE_SUFFIX, MongoDB
from penstock.sinks.mongodb.writer import location_of, open_database

# Ms that the server may take for a copy.
COPY_TIMEOUT_MS = 3_600_000

T = TypeVar("T")


def open_collection_versions(output: Output, replacement: str, back: bool) -> CollectionVersions:
    """See `penstock.model.target_versions.VersionsOpener`."""
    assert isinstance(output, MongoDB)
    url = required_url(output.connection, output.name)
    database = open_database(url, output, socketTimeoutMS=COPY_TIMEOUT_MS)
    return CollectionVersions(database, output, replacement, back=back)


class CollectionVersions:
    """See `TargetVersions`.

    Args:
        database: Of the output; its client is closed with this.
        output: The sink's output.
        replacement: The id of the replacement.
        back: Whether the version before is shown again.
    """

    def __init__(self, database: Database[Any], output: MongoDB, replacement: str, *, back: bool = False) -> None:
        self._database, self._output, self._back = database, output, back
        self._requests = MongoRequests(location_of(database, output), 1)
        self._name = output.collection
        self._before = replace(output, collection=f"{self._name}.version-before")
        self._new = replace(output, collection=f"{self._name}.version-{replacement[:8]}")
        tombstones = re.escape(TOMBSTONE_SUFFIX)
        self._built_name = re.compile(re.escape(self._name) + rf"\.version-[0-9a-f]{{8}}({tombstones})?")

    @property
    def new(self) -> MongoDB:
        """See `TargetVersions`."""
        return self._new

    def prepare(self) -> None:
        """See `TargetVersions`."""
        self._ask(self._prepare)

    def _prepare(self) -> None:
        own = (self._new.collection, self._new.tombstone_collection)
        for name in self._names():
            if self._built_name.fullmatch(name) and name not in own:
                self._database[name].drop()
        if self._back and self._new.collection not in self._names():
            if self._before.collection not in self._names():
                raise PenstockError(
                    f"the documents of {self._output.name} before its replacement are not kept",
                    got=f"no collection {self._before.collection}",
                    hint="put the earlier code on the disk, and replace the sink again: that builds them anew",
                )
            self._rename(self._before, self._new)
        manager = CollectionManager(self._database, self._new)
        for name in own:
            if name not in self._names():
                self._database.create_collection(name)
            manager.ensure(name)
        self._copy_indexes()

    def show(self) -> None:
        """See `TargetVersions`."""
        self._ask(self._show)

    def _show(self) -> None:
        if self._new.collection not in self._names():
            return
        # The documents come last: they say whether this is done.
        for new, shown, before in (
            (self._new.tombstone_collection, self._output.tombstone_collection, self._before.tombstone_collection),
            (self._new.collection, self._name, self._before.collection),
        ):
            if new not in self._names():
                continue
            # Its indexes would hold for the copy.
            self._database[before].drop()
            if shown in self._names():
                list(self._database[shown].aggregate([{"$out": before}]))
            self._database[new].rename(shown, dropTarget=True)

    def discard(self) -> None:
        """See `TargetVersions`."""
        if self._back:
            self._ask(lambda: self._rename(self._new, self._before))
        else:
            self._ask(lambda: self._drop(self._new))

    def forget(self) -> None:
        """See `TargetVersions`."""
        self._ask(lambda: self._drop(self._before))

    def close(self) -> None:
        """See `TargetVersions`."""
        self._requests.close()
        self._database.client.close()

    def _ask(self, request: Callable[[], T]) -> T:
        return self._requests.read(request)

    def _names(self) -> set[str]:
        return set(self._database.list_collection_names())

    def _rename(self, version: MongoDB, to: MongoDB) -> None:
        # The documents come last, as where they are shown.
        for name, other in (
            (version.tombstone_collection, to.tombstone_collection),
            (version.collection, to.collection),
        ):
            if name in self._names():
                self._database[name].rename(other, dropTarget=True)

    def _drop(self, version: MongoDB) -> None:
        for name in (version.collection, version.tombstone_collection):
            self._database[name].drop()

    def _copy_indexes(self) -> None:
        """Indexes that people made serve their queries: the new version has them, too, unless they refuse documents."""
        new = self._database[self._new.collection]
        present = [one["key"] for one in new.index_information().values()]
        for name, index in self._database[self._name].index_information().items():
            options = {key: value for key, value in index.items() if key not in ("v", "key", "ns")}
            if index["key"] not in present and not options.keys() & {"unique", "expireAfterSeconds"}:
                new.create_index(index["key"], name=name, **options)
