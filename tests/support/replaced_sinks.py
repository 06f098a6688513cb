"""Sinks whose documents are replaced, in each store that can, and a reader that looks meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pymongo

from penstock.model.sql.sink_file import parse
from penstock.sinks.core.stream import sink_stream
from penstock.streams import Stream, Topic
from penstock.testing import Record
from tests.support.elasticsearch import Server

NAME = "replaced"
THINGS = Topic("things", partitions=2, compacted=True, config={"retention.ms": "-1"})
BEGIN = 1_700_000_000_000
# The type of `n` differs, so that Elasticsearch refuses the new documents in the old index.
OLD, NEW = "SELECT id, string(n) AS n FROM things", "SELECT id, n * n AS n, 'new' AS more FROM things"

Documents = dict[str, dict[str, Any]]


class Store(Protocol):
    """A store that a sink writes to. target: what follows its name in the statement."""

    store: str
    target: str
    url: str

    def documents(self, suffix: str = "") -> Documents | None:
        """The documents that readers see under the name of the sink's target; None if the search failed."""

    def refresh(self) -> None:
        """Let readers see all that is written."""

    def versions(self) -> list[str]:
        """The names of what there is beside the target and its tombstones."""


@dataclass
class MongoStore:
    """A database of a MongoDB."""

    url: str
    database: str
    store: str = "mongodb"

    def __post_init__(self) -> None:
        self.target = f"`{self.database}`.things"
        self.client: pymongo.MongoClient[Any] = pymongo.MongoClient(self.url)

    def documents(self, suffix: str = "") -> Documents:
        found = self.client[self.database]["things" + suffix.replace("-", ".", 1)].find({}, {"_v": 0})
        return {one.pop("_id"): one for one in found}

    def refresh(self) -> None:
        """All that is written is seen."""

    def versions(self) -> list[str]:
        return sorted(n for n in self.client[self.database].list_collection_names() if ".version" in n)


@dataclass
class ElasticsearchStore:
    """An Elasticsearch."""

    server: Server
    store: str = "elasticsearch"
    target: str = "things"

    def __post_init__(self) -> None:
        self.url = self.server.url

    def documents(self, suffix: str = "") -> Documents | None:
        found = self.server.call("GET", f"things{suffix}/_search?size=1000")
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]} if "hits" in found else None

    def refresh(self) -> None:
        """Let searches find all that is written."""
        self.server.call("POST", "things/_refresh")

    def versions(self) -> list[str]:
        shown = set(self.server.call("GET", "_alias/things,things-tombstones"))
        found = self.server.call("GET", "_cat/indices/things-*?format=json&h=index")
        templates = self.server.call("GET", "_index_template/penstock-things-version-*").get("index_templates", ())
        return sorted({one["index"] for one in found} - shown - {"things-tombstones"}) + [t["name"] for t in templates]


def sink(store: Store, select: str, clauses: str = "") -> Stream:
    """A sink of the records of THINGS."""
    text = f"""UPSERT INTO {store.store}.{store.target}
    READ things AS JSON (id STRING NOT NULL, n BIGINT) {clauses} AS {select}"""
    made = sink_stream(parse(text, Path(f"sql/sinks/{NAME}.sql")), {THINGS.name: THINGS})
    return replace(made, app="tests")


def things(*numbers: int, at: int = BEGIN, n: int | None = None) -> list[Record]:
    """Records of some things; each has its number, or another one."""
    values = {number: {"id": str(number), "n": number if n is None else n} for number in numbers}
    return [Record("things", str(k), json.dumps(v), k % 2, timestamp=at + k) for k, v in values.items()]


def deleted(*numbers: int, at: int = BEGIN) -> list[Record]:
    """Tombstones of some things."""
    return [Record("things", str(number), None, number % 2, timestamp=at + number) for number in numbers]


def old_documents(numbers: Sequence[int]) -> Documents:
    return {str(n): {"id": str(n), "n": str(n)} for n in numbers}


def new_documents(numbers: Sequence[int]) -> Documents:
    return {str(n): {"id": str(n), "n": n * n, "more": "new"} for n in numbers}


@dataclass
class Reader:
    """Reads the documents all the time; seen: what was there, each once in a row."""

    store: Store
    seen: list[Documents] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[None]:
        stop = threading.Event()

        def look() -> None:
            found = self.store.documents()
            if found is not None and (not self.seen or self.seen[-1] != found):
                self.seen.append(found)

        def read() -> None:
            while not stop.is_set():
                look()
            # What is there in the end, if the last look began before.
            look()

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
