"""Removal of the checkpoint, consumer group and topics of a stream that is no longer declared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.catalog import Catalog
from penstock.engine.checkpoint import s3a
from penstock.engine.checkpoint.layout import PREVIEWS
from penstock.errors import PenstockError
from penstock.kafka import cleanup
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.commit_marker import delete_commit_marker
from penstock.kafka.replay import REPLAYS
from penstock.model.declaration import CatalogNode
from penstock.model.topic import COMMITS, DEAD_LETTERS, POSITIONS
from penstock.object_store.bucket import Bucket
from penstock.settings import settings

PREFIX = "penstock."
"""Of the consumer groups of streams."""
# Beside the checkpoint: its tables, the checkpoint before a reset, a pending reset, a rebuild that did not end, the
# copy of a dry run, and what a replacement builds.
SUFFIXES = ("", ".tables", ".before", ".reset", ".rebuilding", ".dry-run", ".replacement")


@dataclass(frozen=True)
class TopicUse:
    """A topic that a removed stream read or may have written.

    Attributes:
        name: of the topic.
        was_read: whether the stream's consumer group has offsets of it. What the stream wrote is not recorded: such
            topics are among the unused ones.
        users: the declarations that read or write it.
    """

    name: str
    was_read: bool
    users: Sequence[str]


class Removal:
    """The remains of a stream that is no longer declared.

    Attributes:
        group: Its consumer group.
        has_remains: Whether it has a checkpoint or a consumer group.
        others: Names of other streams that are not declared and have either.

    Raises:
        PenstockError: the checkpoints are in a store that Penstock does not read.
    """

    def __init__(self, name: str, catalog: Catalog) -> None:
        bootstrap = settings().bootstrap
        self._name, self._client = name, admin(bootstrap)
        self.group = f"{PREFIX}{name}"
        self._topics = partition_counts(self._client, bootstrap)
        self._folders = folders(name)
        groups = cleanup.group_names(self._client, bootstrap)
        self.has_remains = bool(self._folders) or self.group in groups
        left = {group.removeprefix(PREFIX) for group in groups if group.startswith(PREFIX)} | _local_checkpoints()
        self.others = left - {name} - catalog.declared.keys()
        self.users = {topic: used_by(catalog, topic) for topic in self._topics if not topic.startswith("__")}
        read = cleanup.topics_of_group(bootstrap, self.group, self._topics)
        self.topics = [
            TopicUse(topic, topic in read, users)
            for topic, users in sorted(self.users.items())
            if topic in read or not users
        ]

    @property
    def folders(self) -> Sequence[str]:
        return list(self._folders)

    def check_unused(self, topics: set[str]) -> None:
        """Raises PenstockError if topics do not exist, or are used."""
        if missing := sorted(topics - self.users.keys()):
            raise PenstockError("the broker does not have these topics", got=", ".join(missing), hint="leave them out")
        if used := [f"{topic} ({', '.join(self.users[topic])})" for topic in sorted(topics) if self.users[topic]]:
            raise PenstockError("these topics are used by others", got=", ".join(used), hint="leave them out")

    def remove_checkpoint(self) -> None:
        """Remove the commit marker, the folders and the consumer group.

        In this order: by folders and group a removal that was interrupted is repeated, and a commit marker that is left
        would let a later stream of this name go on behind it, or stop it.
        """
        if COMMITS.name in self._topics:
            delete_commit_marker(self._name, settings().bootstrap)
        for remove in self._folders.values():
            remove()
        cleanup.delete_group(self._client, self.group, settings().bootstrap)

    def remove_topics(self, topics: set[str]) -> None:
        cleanup.delete_topics(self._client, topics, settings().bootstrap)


def used_by(catalog: Catalog, topic: str) -> list[str]:
    """Who reads or writes a topic, without streams that read it by a pattern and continue without it."""
    if topic in (COMMITS.name, POSITIONS.name, DEAD_LETTERS.name, REPLAYS.name):
        return ["Penstock"]
    users = {d.name for d in catalog.declared.values() if CatalogNode("topic", topic) in (*d.reads, *d.writes)}
    users |= {
        stream.name
        for stream in catalog.streams.values()
        if any(
            source.pattern and source.fails_on_data_loss and source.reads_topic(topic)
            for source in stream.sources.values()
        )
    }
    return sorted(users) or (["the catalog"] if topic in catalog.topics else [])


def folders(name: str) -> Mapping[str, Callable[[], None]]:
    """The folders of a stream's checkpoint that exist, each with the function that removes it."""
    root = settings().checkpoint_root
    remote: dict[str, Callable[[], None]] = {}
    if s3a.is_object_store(root):
        store = s3a.store_below(root)
        for folder in (f"{name}{suffix}" for suffix in SUFFIXES):
            if keys := [one.key for one in store.list_objects(folder)]:
                remote[f"{root.rstrip('/')}/{folder}"] = partial(_delete, store, keys)
        # On this host's disk: tables, and files of folds' state that were fetched from the store.
        local = [*settings().home.glob(f"tables/*/{name}.tables"), *settings().home.glob(f"folds/*/{name}")]
    elif on_disk := settings().checkpoint_folder:
        local = [on_disk / f"{name}{suffix}" for suffix in SUFFIXES]
    else:
        raise PenstockError(
            "the checkpoints are neither on a disk of this machine nor in an object store",
            got=root,
            hint=f"remove the folder {name} there with that store's own tools",
        )
    return remote | {str(path): partial(shutil.rmtree, path) for path in local if path.is_dir()}


def _local_checkpoints() -> set[str]:
    """Names of streams that have a checkpoint on this host's disk."""
    root = settings().checkpoint_folder
    if root is None or not root.is_dir():
        return set()
    names = [path.name for path in root.iterdir() if path.is_dir() and path.name != PREVIEWS]
    return {name for name in names if not name.endswith(SUFFIXES[1:])}


def _delete(store: Bucket, keys: list[str]) -> None:
    for key in keys:
        store.delete(key)
