"""A checkpoint that lost files, is older than what was written, or was copied: nothing is lost, nothing comes twice."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.control.repositories.data_loss import InMemoryDataLossLog
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint import layout
from penstock.engine.faults.poison import PoisonRecords
from penstock.engine.query.source import RecordPosition
from penstock.engine.query.stream_run import StreamRun
from penstock.errors import Blocked
from penstock.kafka.admin import admin
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS
from penstock.streams import Stream
from penstock.testing import create, running, send
from tests.support.recovered_streams import COUNTS, EACH, EVENTS, OUT, events, values
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.integration


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, EVENTS, OUT, COMMITS)
    return fresh_broker.bootstrap


def three_batches(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> Path:
    send(bootstrap, events(1))
    with running(stream, spark, bootstrap, folder) as run:
        run.process_all_available()
        for n in (2, 3):
            send(bootstrap, events(n))
            run.process_all_available()
    return folder / stream.name


def emptied(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"")
        (folder / name).with_name(f".{Path(name).name}.crc").write_bytes(b"")


@pytest.mark.long
def test_files_that_a_power_cut_took_are_put_back(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """All that it can take at once. A unit test tries each by itself, with and without state."""
    folder = three_batches(COUNTS, spark, bootstrap, tmp_path)
    assert values(bootstrap) == [1, 2, 3]
    emptied(folder, "metadata", "offsets/2", "commits/1", "commits/2", "sources/0/0", "penstock.json")
    # More comes before it starts again: Spark would plan the lost batch with it.
    send(bootstrap, events(4))
    with running(COUNTS, spark, bootstrap, tmp_path) as run:
        wait_until(
            lambda: tended(run.reconcile, lambda: len(values(bootstrap)) >= 4), what="the fourth record is written"
        )
        run.process_all_available()
        assert run.figures.state != "blocked"
    assert values(bootstrap) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("stream", "lost"),
    [pytest.param(EACH, "cut", marks=pytest.mark.long), (COUNTS, "never whole")],
    ids=["each", "counts"],
)
def test_an_incomplete_first_batch_is_planned_again(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Stream, lost: str
) -> None:
    """Spark takes no folder for new that has anything of a batch in it."""

    def dies(*_: object) -> None:
        raise RuntimeError("cut off")

    send(bootstrap, events(1))
    with monkeypatch.context() as patch:
        patch.setattr(TopicWriter, "write", dies)
        with running(stream, spark, bootstrap, tmp_path) as run:
            wait_until(lambda: not run.active, what="its first batch fails")
    folder = tmp_path / stream.name
    assert [path.name for path in (folder / "commits").iterdir()] == []
    if lost == "cut":
        emptied(folder, "offsets/0")
    else:
        (folder / "offsets" / "0").rename(folder / "offsets" / ".0.8a5e3d4c.tmp")
    send(bootstrap, events(2))
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert values(bootstrap) == ([1, 2] if stream is EACH else [2])


@pytest.mark.long
def test_a_torn_state_file_of_an_uncommitted_batch_is_written_again(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Of a batch that had not ended; Spark leaves the file as it is, and finds it out at the start behind the next."""
    folder = three_batches(COUNTS, spark, bootstrap, tmp_path)
    (folder / "commits" / "2").unlink()
    torn = folder / "state" / "0" / "0" / "3.changelog"
    torn.write_bytes(torn.read_bytes()[:10])
    torn.with_name(f".{torn.name}.crc").write_bytes(b"")
    for n in (4, 5):
        send(bootstrap, events(n))
        with running(COUNTS, spark, bootstrap, tmp_path) as run:
            run.process_all_available()
            assert run.figures.error is None
    assert values(bootstrap) == [1, 2, 3, 4, 5]


def older(folder: Path, batches: int) -> None:
    """The folder as it was when so many batches had ended."""
    for part in ("offsets", "commits"):
        for file in (folder / part).iterdir():
            if int("".join(filter(str.isdigit, file.name))) >= batches:
                file.unlink()
    for file in (folder / "state").rglob("*.changelog"):
        if int(file.name.split(".")[0]) > batches:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink()


@pytest.mark.long
def test_checkpoint_files_are_synced_before_the_batch_is_written(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, lacking = set[Path](), set[Path]()
    sync, write = layout._sync, TopicWriter.write

    def noted(path: Path) -> None:
        sync(path)
        synced.add(path)

    def written(self: TopicWriter, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        kept = [*(tmp_path / "counts" / "offsets").iterdir(), *(tmp_path / "counts" / "state").rglob("*.changelog")]
        lacking.update({*kept, *(path.parent for path in kept)} - synced)
        return write(self, rows, mark)

    monkeypatch.setattr(layout, "_sync", noted)
    monkeypatch.setattr(TopicWriter, "write", written)
    folder = three_batches(COUNTS, spark, bootstrap, tmp_path)
    third = folder / "state" / "0" / "0" / "3.changelog"
    assert third in synced
    assert not lacking
    # Its state is made once more, though it was written before the restart.
    older(folder, 2)
    synced.clear()
    with running(COUNTS, spark, bootstrap, tmp_path):
        wait_until((folder / "commits" / "2").exists, what="the batch has ended")
    assert third in synced
    assert values(bootstrap) == [1, 2, 3]


@pytest.mark.parametrize(
    ("stream", "batches"), [(EACH, 1), pytest.param(COUNTS, 2, marks=pytest.mark.long)], ids=["each", "counts"]
)
def test_an_older_checkpoint_continues_from_the_commit_marker(
    spark: SparkSession, bootstrap: str, tmp_path: Path, stream: Stream, batches: int
) -> None:
    older(three_batches(stream, spark, bootstrap, tmp_path), batches)
    send(bootstrap, events(4))
    with running(stream, spark, bootstrap, tmp_path) as run:
        wait_until(
            lambda: tended(run.reconcile, lambda: len(values(bootstrap)) >= 4), what="the fourth record is written"
        )
        run.process_all_available()
    assert values(bootstrap) == [1, 2, 3, 4]


def test_a_checkpoint_older_than_its_state_names_the_offsets_in_doubt(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    older(three_batches(COUNTS, spark, bootstrap, tmp_path), 0)
    (tmp_path / "counts" / "offsets").rmdir()
    with pytest.raises(Blocked, match=r"events\[0\] 0 to \d"), running(COUNTS, spark, bootstrap, tmp_path):
        pass
    assert values(bootstrap) == [1, 2, 3]


def test_a_checkpoint_without_commit_markers_blocks_until_accepted(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    three_batches(EACH, spark, bootstrap, tmp_path)
    admin(bootstrap).delete_topics([COMMITS.name])[COMMITS.name].result(30)
    wait_until(lambda: COMMITS.name not in admin(bootstrap).list_topics(timeout=10).topics)
    create(bootstrap, COMMITS)
    book = InMemoryDataLossLog()
    with pytest.raises(Blocked, match="no commit marker"), running(EACH, spark, bootstrap, tmp_path, book):
        pass
    [asked] = book.pending["each"]
    book.accepted.add(("each", asked))
    send(bootstrap, events(4))
    with running(EACH, spark, bootstrap, tmp_path, book) as run:
        run.process_all_available()
    assert values(bootstrap) == [1, 2, 3, 4]


def test_the_older_of_two_checkpoint_copies_is_blocked(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    three_batches(EACH, spark, bootstrap, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    send(bootstrap, events(4))
    with running(EACH, spark, bootstrap, tmp_path / "there") as run:
        run.process_all_available()
    send(bootstrap, events(5))

    with pytest.raises(Blocked, match="goes on from a copy"), running(EACH, spark, bootstrap, tmp_path / "here"):
        pass
    with running(EACH, spark, bootstrap, tmp_path / "there") as run:
        run.process_all_available()
    assert values(bootstrap) == [1, 2, 3, 4, 5]


def test_unreadable_state_blocks_the_stream_at_every_retry(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of changes, the schema, and all of it: one damage after the other under a stream that is retried."""
    monkeypatch.setattr("penstock.engine.query.stream_run.BLOCKED_RETRY_S", 0.1)
    searched: list[object] = []
    starts: list[object] = []

    def search(_: PoisonRecords, batch: object, *__: object) -> dict[RecordPosition, str]:
        searched.append(batch)
        return {}

    def count_start(run: StreamRun) -> None:
        starts.append(run)
        start_query(run)

    start_query = StreamRun._start_query
    monkeypatch.setattr(PoisonRecords, "_find", search)
    monkeypatch.setattr(StreamRun, "_start_query", count_start)
    folder = three_batches(COUNTS, spark, bootstrap, tmp_path)
    state, copy = folder / "state", tmp_path / "copy"
    shutil.copytree(state, copy)

    def damage(name: str) -> None:
        shutil.rmtree(state, ignore_errors=True)
        if name:
            shutil.copytree(copy, state)
            emptied(state, name)

    damage("0/0/3.changelog")
    send(bootstrap, events(4))
    with running(COUNTS, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.error), what="the query fails")
        for following in ("0/0/_metadata/schema", "", None):
            first, states = len(starts), set[str]()

            def retried(first: int = first, states: set[str] = states) -> bool:
                run.reconcile()
                states.add(run.figures.state)
                return len(starts) > first + 1

            wait_until(retried, every=0.01)
            assert (states, searched) == ({"blocked"}, [])
            assert "the checkpoint of stream counts is damaged; got: its state: " in (run.figures.error or "")
            if following is not None:
                wait_until(lambda: not run.active, every=0.01)
                damage(following)
        assert run.figures.restarts == 0
    assert values(bootstrap) == [1, 2, 3]
