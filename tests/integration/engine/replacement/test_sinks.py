"""The documents of a sink are built anew beside those that readers see, and take their place at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.replacement import replacement as replacements
from penstock.engine.replacement.cut import discard_documents, is_handed_over, show_documents
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions
from penstock.engine.session import session_for
from penstock.errors import PenstockError
from penstock.kafka.dead_letters import read_dead_letters
from penstock.model.target_versions import open_versions, versioned_output
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.streams import Stream
from penstock.testing import create, running, send
from tests.support.elasticsearch import Server
from tests.support.mongodb import given
from tests.support.replaced_sinks import (
    BEGIN,
    NEW,
    OLD,
    ElasticsearchStore,
    MongoStore,
    Reader,
    Store,
    deleted,
    new_documents,
    old_documents,
    sink,
    things,
)

pytestmark = pytest.mark.integration

FIRST, SECOND = "1" * 32, "2" * 32
HOUR = 3_600_000


@pytest.fixture(params=["mongodb", pytest.param("elasticsearch", marks=pytest.mark.long)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made: Store
    if request.param == "mongodb":
        made = MongoStore(request.getfixturevalue("mongodb_url"), f"replaced-{tmp_path.name[-20:]}")
    else:
        server: Server = request.getfixturevalue("search")
        server.clear()
        made = ElasticsearchStore(server)
    monkeypatch.setenv(f"PENSTOCK_{made.store.upper()}_URL", made.url)
    settings.cache_clear()
    yield made
    settings.cache_clear()
    if isinstance(made, MongoStore):
        made.client.drop_database(made.database)
        made.client.close()


class Case:
    """A sink and its replacements."""

    def __init__(self, spark: SparkSession, bootstrap: str, root: Path) -> None:
        self.spark, self.bootstrap, self.root = spark, bootstrap, root

    @contextmanager
    def replacing(self, stream: Stream, id: str, **options: object) -> Iterator[Replacement]:  # noqa: A002
        session = session_for(self.spark, stream)
        how = ReplacementOptions(**options)  # type: ignore[arg-type]
        with closing(Replacement(stream, session, self.bootstrap, str(self.root), id, how)) as made:
            made.open()
            yield made

    def follow(self, replacement: Replacement) -> None:
        """Let it come to where the running version is."""
        while not (replacement.advance() and replacement.is_ready):
            pass


@pytest.fixture
def case(spark: SparkSession, fresh_broker: Broker, store: Store, tmp_path: Path) -> Case:
    create(fresh_broker.bootstrap, *sink(store, OLD).topics(), COMMITS)
    return Case(spark, fresh_broker.bootstrap, tmp_path)


def test_new_documents_take_the_place_of_the_old_ones_and_go_back(case: Case, store: Store) -> None:
    old, new = sink(store, OLD), sink(store, NEW)
    reader = Reader(store)
    for compared in ({"must_equal": True}, {"write": "all"}):
        with pytest.raises(PenstockError, match="are not compared"), case.replacing(new, FIRST, **compared):
            pass
    with running(old, case.spark, case.bootstrap, case.root) as run:
        send(case.bootstrap, [*things(*range(20)), *deleted(3, at=BEGIN + HOUR)])
        run.process_all_available()
        with case.replacing(new, FIRST, rate=1_000_000) as replacement:
            case.follow(replacement)
            send(case.bootstrap, [*things(20, 21), *deleted(4, at=BEGIN + HOUR)])
            run.process_all_available()
            case.follow(replacement)
            send(case.bootstrap, things(22))
            run.process_all_available()
    left = [n for n in range(23) if n not in (3, 4)]
    with case.replacing(new, FIRST) as replacement:
        case.follow(replacement)
        store.refresh()
        with reader.reading():
            replacement.cut()
    seen = reader.seen if given() or store.store == "elasticsearch" else list(filter(None, reader.seen))
    # The embedded MongoDB drops a collection before it renames another to it.
    assert seen == [old_documents(left), new_documents(left)]
    with running(new, case.spark, case.bootstrap, case.root) as run:
        # Of what was deleted an older record is late.
        send(case.bootstrap, [*things(3, at=BEGIN + 1), *things(30)])
        run.process_all_available()
    with case.replacing(old, SECOND, back=True) as replacement:
        case.follow(replacement)
        replacement.cut()
    assert store.documents() == old_documents([*left, 30])
    assert store.documents("-version-before") == new_documents([*left, 30])
    with running(old, case.spark, case.bootstrap, case.root) as run:
        send(case.bootstrap, [*things(4, at=BEGIN + 1), *things(31)])
        run.process_all_available()
    output = versioned_output(old)
    assert output
    with closing(open_versions(output, "")) as versions:
        versions.forget()
    store.refresh()
    assert (store.documents(), store.versions()) == (old_documents([*left, 30, 31]), [])


@pytest.mark.long
def test_nothing_is_left_of_a_replacement_that_was_cancelled(case: Case, store: Store) -> None:
    old, new = sink(store, OLD), sink(store, NEW)
    with running(old, case.spark, case.bootstrap, case.root) as run:
        send(case.bootstrap, things(1, 2))
        run.process_all_available()
        with case.replacing(new, FIRST) as replacement:
            case.follow(replacement)
        assert store.versions()
        discard_documents(new, FIRST, back=False)
        assert store.versions() == []
        # One that was killed before it could do that: the next one does.
        for replacement_id in (FIRST, SECOND):
            with case.replacing(new, replacement_id) as replacement:
                case.follow(replacement)
        discard_documents(new, SECOND, back=False)
    assert store.versions() == []
    store.refresh()
    assert store.documents() == old_documents([1, 2])


@pytest.mark.long
def test_the_process_after_one_that_was_killed_at_the_cut_shows_the_new_documents(
    case: Case, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = sink(store, OLD), sink(store, NEW)
    with running(old, case.spark, case.bootstrap, case.root) as run:
        send(case.bootstrap, things(1, 2))
        run.process_all_available()
    with case.replacing(new, FIRST) as replacement:
        case.follow(replacement)
        monkeypatch.setattr(replacements, "show_documents", killed)
        with pytest.raises(Killed):
            replacement.cut()
    store.refresh()
    assert store.documents() == old_documents([1, 2])
    assert is_handed_over(case.spark, str(case.root), new.name, FIRST)
    for _ in range(2):
        show_documents(new, FIRST, back=False)
        assert store.documents() == new_documents([1, 2])


class Killed(Exception):
    """Where a process is killed."""


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.long
def test_what_the_store_refuses_becomes_a_dead_letter_after_the_cut(case: Case, store: Store) -> None:
    old, new = (
        sink(store, OLD),
        sink(store, "SELECT id, CASE WHEN n <> 2 THEN id END AS n FROM things", "KEY (n)\n    TOMBSTONES IGNORE"),
    )
    with running(old, case.spark, case.bootstrap, case.root) as run:
        send(case.bootstrap, things(1, 2))
        run.process_all_available()
        with case.replacing(new, FIRST) as replacement:
            case.follow(replacement)
            assert replacement.progress.comparison
            assert replacement.progress.comparison.refused == 1
            [example] = replacement.progress.comparison.examples
            assert (example["outcome"], example["key"]) == ("refused", None)
    with case.replacing(new, FIRST) as replacement:
        case.follow(replacement)
        replacement.cut()
    with running(new, case.spark, case.bootstrap, case.root) as run:
        run.process_all_available()
        assert run.figures.dead == 1
    [letter] = read_dead_letters(["replaced-dead-letter"], case.bootstrap)
    assert letter.origin == ("things", 0, 0)
