"""New versions of a sink's target are shown, discarded and forgotten by processes that are killed at each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Protocol

import pyarrow as pa
import pytest
from elastic_transport import Transport
from pymongo.collection import Collection
from pymongo.database import Database

from penstock.errors import PenstockError
from penstock.model.target_versions import TargetVersions
from penstock.sinks.elasticsearch.client import connect
from penstock.sinks.elasticsearch.config import Elasticsearch
from penstock.sinks.elasticsearch.target_versions import IndexVersions
from penstock.sinks.elasticsearch.writer import IndexWriter
from penstock.sinks.mongodb.config import MongoDB
from penstock.sinks.mongodb.target_versions import CollectionVersions
from penstock.sinks.mongodb.writer import MongoWriter, open_database
from tests.support import elasticsearch as es
from tests.support.elasticsearch import NOON, Server, give, row, shaped
from tests.support.mongodb import Row, fresh, write
from tests.support.replaced_sinks import ElasticsearchStore, MongoStore, Store

pytestmark = pytest.mark.integration

FIRST, SECOND, THIRD = "1" * 32, "2" * 32, "3" * 32


class Killed(BaseException):
    """Where a process is killed."""


class Target(Protocol):
    """A target of a store, and writers to it. requests: what sends each request to the store, as (owner, name)."""

    @property
    def requests(self) -> tuple[tuple[Any, str], ...]: ...

    @property
    def store(self) -> Store: ...

    def clear(self) -> None:
        """Remove all that there is."""

    def versions_of(self, replacement: str, *, back: bool = False) -> TargetVersions:
        """Its versions, as a process has them."""

    def write(self, output: Any, documents: dict[str, int | None], version: int) -> None:
        """Write documents with a number each; None for a tombstone."""

    @property
    def output(self) -> Any:
        """What writes the documents that are shown."""


class Index:
    requests = ((Transport, "perform_request"),)

    def __init__(self, server: Server) -> None:
        self.server, self.store = server, ElasticsearchStore(server)

    def clear(self) -> None:
        self.server.clear()

    def versions_of(self, replacement: str, *, back: bool = False) -> TargetVersions:
        return IndexVersions(connect(self.server.url), self.output, replacement, back=back)

    def write(self, output: Elasticsearch, documents: dict[str, int | None], version: int) -> None:
        writer = IndexWriter(self.server.url, output, clock=lambda: NOON)
        rows = [row(key, version, None if n is None else {"n": n}) for key, n in documents.items()]
        give(writer, *rows, shape=shaped({"n": pa.int64()}))
        writer.close()

    @property
    def output(self) -> Elasticsearch:
        return es.output("things")


class Documents:
    requests = tuple((Collection, n) for n in ("drop", "aggregate", "rename", "create_index")) + tuple(
        (Database, n) for n in ("create_collection", "list_collection_names")
    )

    def __init__(self, url: str, database: str) -> None:
        self.url, self.database = url, database
        self.store: MongoStore = MongoStore(url, database)

    def clear(self) -> None:
        self.store.client.drop_database(self.database)

    def close(self) -> None:
        self.store.client.close()

    def versions_of(self, replacement: str, *, back: bool = False) -> TargetVersions:
        return CollectionVersions(open_database(self.url, self.output), self.output, replacement, back=back)

    def write(self, output: MongoDB, documents: dict[str, int | None], version: int) -> None:
        writer = MongoWriter(self.url, output)
        write(writer, output, *(Row(key, version, None if n is None else {"n": n}) for key, n in documents.items()))
        writer.close()

    @property
    def output(self) -> MongoDB:
        return MongoDB(sink="things", database=self.database, collection="things")


@pytest.fixture(params=["mongodb", "elasticsearch"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if request.param == "mongodb":
        url = request.getfixturevalue("mongodb_url")
        with fresh(url) as database:
            with closing(Documents(url, database.name)) as documents:
                yield documents
    else:
        made = Index(request.getfixturevalue("search"))
        made.clear()
        yield made


@contextmanager
def killed_at(target: Target, number: int, *, after: bool) -> Iterator[list[int]]:
    """Let the request of a number, from 0 on, raise Killed, before or after it is made; yields how many there were."""
    made: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in target.requests:
            patch.setattr(owner, name, _killing(getattr(owner, name), made, number, after=after))
        yield made


def _killing(function: Callable[..., Any], made: list[int], number: int, *, after: bool) -> Callable[..., Any]:
    def killing(*arguments: Any, **named: Any) -> Any:
        made.append(number)
        if len(made) == number + 1 and not after:
            raise Killed
        answer = function(*arguments, **named)
        if len(made) == number + 1:
            raise Killed
        return answer

    return killing


def ask(target: Target, replacement: str, call: str, *, back: bool = False) -> None:
    versions = target.versions_of(replacement, back=back)
    try:
        getattr(versions, call)()
    finally:
        versions.close()


def build(target: Target, replacement: str, documents: dict[str, int | None], *, back: bool = False) -> None:
    versions = target.versions_of(replacement, back=back)
    versions.prepare()
    target.write(versions.new, documents, 2)
    versions.close()


def numbers(target: Target, suffix: str = "") -> dict[str, int]:
    return {key: one["n"] for key, one in (target.store.documents(suffix) or {}).items()}


def check_tombstones(target: Target, *deleted: str) -> None:
    """What was deleted does not come back by an older write."""
    before = numbers(target)
    target.write(target.output, dict.fromkeys(deleted, 0), 1)
    target.store.refresh()
    assert numbers(target) == before


EVERY = pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.long)])
"""Of how many moments at which a process is killed one is tried: before and after each of its requests."""


@EVERY
@pytest.mark.parametrize(
    "replaced_before",
    [pytest.param(False, id="the first time"), pytest.param(True, id="again", marks=pytest.mark.long)],
)
def test_a_version_is_shown_by_whoever_comes_after_one_that_was_killed(
    target: Target, replaced_before: bool, every: int
) -> None:
    number = 0
    while True:
        target.clear()
        target.write(target.output, {"a": 1, "b": 2, "gone": 3}, 1)
        target.write(target.output, {"gone": None}, 2)
        if replaced_before:
            build(target, THIRD, {"a": 1, "b": 2, "gone": None})
            ask(target, THIRD, "show")
        build(target, FIRST, {"a": 10, "c": 30, "late": None})
        with killed_at(target, number // 2, after=bool(number % 2)) as made, suppress(Killed):
            ask(target, FIRST, "show")
        ask(target, FIRST, "show")
        assert numbers(target) == {"a": 10, "c": 30}, number
        assert numbers(target, "-version-before") == {"a": 1, "b": 2}, number
        check_tombstones(target, "late")
        # And back.
        build(target, SECOND, {"d": 4}, back=True)
        assert numbers(target) == {"a": 10, "c": 30}
        with killed_at(target, number // 2, after=bool(number % 2)) as made_back, suppress(Killed):
            ask(target, SECOND, "show", back=True)
        ask(target, SECOND, "show", back=True)
        assert numbers(target) == {"a": 1, "b": 2, "d": 4}, number
        assert numbers(target, "-version-before") == {"a": 10, "c": 30}, number
        check_tombstones(target, "gone")
        with killed_at(target, number // 2, after=bool(number % 2)), suppress(Killed):
            ask(target, "", "forget")
        ask(target, "", "forget")
        assert target.store.versions() == [], number
        assert numbers(target) == {"a": 1, "b": 2, "d": 4}, number
        if number // 2 >= max(len(made), len(made_back)):
            break
        number += every


@EVERY
def test_nothing_is_left_of_a_version_that_is_discarded(target: Target, every: int) -> None:
    target.write(target.output, {"a": 1}, 1)
    target.store.refresh()
    number = 0
    while True:
        with killed_at(target, number // 2, after=bool(number % 2)) as made, suppress(Killed):
            ask(target, FIRST, "prepare")
        build(target, FIRST, {"a": 10})
        with killed_at(target, number // 2, after=bool(number % 2)), suppress(Killed):
            ask(target, FIRST, "discard")
        ask(target, FIRST, "discard")
        assert (numbers(target), target.store.versions()) == ({"a": 1}, []), number
        if number // 2 >= len(made):
            break
        number += every
    # One that was never discarded.
    build(target, FIRST, {"a": 10})
    build(target, SECOND, {"a": 20})
    ask(target, SECOND, "show")
    assert numbers(target) == {"a": 20}
    # To go back is discarded: that stays possible.
    build(target, THIRD, {"a": 2}, back=True)
    ask(target, THIRD, "discard", back=True)
    assert numbers(target) == {"a": 20}
    assert list(numbers(target, "-version-before")) == ["a"]
    ask(target, "", "forget")
    assert target.store.versions() == []


def test_what_was_not_kept_cannot_be_shown_again(target: Target) -> None:
    target.write(target.output, {"a": 1}, 1)
    with pytest.raises(PenstockError, match=r"documents of .*things before its replacement are not kept.*hint: put"):
        ask(target, FIRST, "prepare", back=True)


def test_what_people_gave_an_index_is_given_to_its_new_version(search: Server) -> None:
    target = Index(search)
    target.clear()
    target.write(target.output, {"a": 1}, 1)
    template = search.call("GET", "_index_template/penstock-things")["index_templates"][0]["index_template"]
    template["template"]["settings"]["index"]["number_of_shards"] = "2"
    wanted = {name: template[name] for name in ("index_patterns", "priority", "template")}
    assert search.call("PUT", "_index_template/penstock-things", wanted)["acknowledged"]
    search.call("PUT", "things/_alias/mine", {"filter": {"term": {"n": 10}}})
    build(target, FIRST, {"a": 10, "b": 20})
    ask(target, FIRST, "show")
    assert (
        search.call("GET", "things/_settings?flat_settings=true")["things-version-11111111"]["settings"][
            "index.number_of_shards"
        ]
        == "2"
    )
    assert list(search.documents("mine")) == ["a"]
    # It is created as it was, if somebody deletes it.
    search.call("DELETE", "things-version-11111111")
    target.write(target.output, {"c": 3}, 3)
    made = search.call("GET", "things/_settings?flat_settings=true")["things"]["settings"]
    assert made["index.number_of_shards"] == "2"


def test_indexes_that_people_made_are_made_for_a_new_version(mongodb_url: str) -> None:
    with fresh(mongodb_url) as database:
        with closing(Documents(mongodb_url, database.name)) as target:
            check_indexes(target, database)


def check_indexes(target: Documents, database: Database[Any]) -> None:
    target.write(target.output, {"a": 1}, 1)
    database["things"].create_index([("n", -1)])
    database["things"].create_index([("m", 1)], unique=True)
    build(target, FIRST, {"a": 10})
    ask(target, FIRST, "show")
    assert sorted(one["key"] for one in database["things"].index_information().values()) == [[("_id", 1)], [("n", -1)]]
