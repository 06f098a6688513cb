"""A process whose checkpoints lie in an object store, and which runs streams as it is told.

Each line of its input is one thing to do, as JSON, each of its output what came of it. The settings say where the store
is, and only a process that was started with them has the client for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from penstock.control import ProgressRow
from penstock.control.repositories.data_loss import InMemoryDataLossLog
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.jvm import bridge, hadoop_fs
from penstock.engine.operations.reset_plan import plan_reset
from penstock.engine.query import stream_run
from penstock.engine.query.stream_run import StreamRun
from penstock.engine.session import open_session, session_for
from penstock.errors import PenstockError
from penstock.settings import PROJECT, settings
from penstock.streams import F, Fold, KeyedState, Stream, Timers, Topic, TopicOutput
from penstock.testing import read, send
from tests.support.recovered_streams import COUNTS, EACH, GIVEN, OUT, events
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMS = Fold(
    name="sums",
    key=("key",),
    state_schema="total BIGINT",
    update_sql="SELECT key, sum(n)::BIGINT + coalesce(any_value(state.total), 0) AS total"
    " FROM records LEFT JOIN state USING (key) GROUP BY key",
    emit_sql="FROM folded",
    output_schema="key STRING, total BIGINT",
)


def summed(events: DataFrame) -> DataFrame:
    return SUMS(events.withColumn("key", F.lit("all"))).withColumnRenamed("total", "n")


TOTALS = Stream(
    "sums", "tests", {"events": GIVEN}, summed,
    TopicOutput(Topic(OUT.name, partitions=1, compacted=True), key="key", value="n"), KeyedState(),
    shuffle_partitions=2,
)  # fmt: skip


def summed_with_timers(events: DataFrame) -> DataFrame:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Sums(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._total = handle.getValueState("total", "n BIGINT")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
            total = sum(row.n for row in rows) + (self._total.get()[0] if self._total.exists() else 0)
            self._total.update((total,))
            yield Row(key=key[0], n=total)

        def close(self) -> None:
            pass

    keyed = events.withColumn("key", F.lit("all")).groupBy("key")
    return keyed.transformWithState(Sums(), "key STRING, n BIGINT", "Append", "EventTime")


TIMED = replace(
    EACH,
    name="timed",
    transform=summed_with_timers,
    output_mode=Timers(tick=timedelta(minutes=1), grace=timedelta(minutes=1)),
)
STREAMS = {stream.name: stream for stream in (EACH, COUNTS, TOTALS, TIMED)}


class Far:
    """The process, as a test speaks with it."""

    def __init__(self, running: subprocess.Popen[str], log: Path) -> None:
        self._running, self._log, self._lines = running, log, list[str]()

    def output(self) -> str:
        """All that it has printed and logged."""
        return "".join(self._lines) + self._log.read_text()

    def do(self, what: str, stream: str, **more: Any) -> dict[str, Any]:
        assert self._running.stdin
        assert self._running.stdout
        print(json.dumps({"what": what, "stream": stream, **more}), file=self._running.stdin, flush=True)
        for line in self._running.stdout:
            self._lines.append(line)
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                assert "fault" not in found, found["fault"]
                return found
        raise AssertionError(f"the process has ended, with {self._running.wait()}")


@contextmanager
def far(bootstrap: str, log: Path, **given: object) -> Iterator[Far]:
    """log: the file of what it logs; given: PENSTOCK_* settings."""
    env = {**os.environ, "PENSTOCK_KAFKA_BOOTSTRAP": bootstrap, **{k: str(v) for k, v in given.items()}}
    command = [sys.executable, "-m", "tests.support.stream_process"]
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=env, cwd=PROJECT, stdin=pipe, stdout=pipe, stderr=errors, text=True) as running,
    ):
        try:
            yield Far(running, log)
        finally:
            assert running.stdin
            running.stdin.close()
            running.wait(60)


class Runs:
    """What the process does."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._bootstrap = spark, settings().bootstrap

    def batches(self, stream: Stream, root: str, numbers: list[int]) -> dict[str, Any]:
        """Numbers that are sent, each once the one before is written: a batch each."""
        run = self._run(stream, root)
        send(self._bootstrap, events(numbers[0]))
        run.start()
        try:
            run.process_all_available()
            for n in numbers[1:]:
                send(self._bootstrap, events(n))
                run.process_all_available()
        finally:
            run.stop()
        return {}

    def run(self, stream: Stream, root: str, rows: int, accepts: bool = False) -> dict[str, Any]:
        """A stream until its output has so many rows in all, or it is blocked; accepts: whether gaps are."""
        book = InMemoryDataLossLog()
        run = self._run(stream, root, book)

        def through() -> bool:
            if accepts:
                book.accepted |= {(stream.name, gap) for gap in book.pending.get(stream.name, ())}
            blocked = run.figures.state == "blocked" and not accepts
            return blocked or len(read(self._bootstrap, OUT.name)) >= rows

        try:
            wait_until(lambda: tended(run.reconcile, through), 60, what="the rows are written")
            if run.figures.state != "blocked":
                run.process_all_available()
            return {"state": run.figures.state, "error": run.figures.error}
        finally:
            run.stop()

    def reset(self, stream: Stream, root: str, to: str) -> dict[str, Any]:
        session = session_for(self._spark, stream)
        checkpoint = Checkpoint(session, root, stream.name)
        plan = plan_reset(stream, session, self._bootstrap, checkpoint, "latest" if to == "latest" else "earliest")
        if not plan.objections:
            checkpoint.request_reset(plan.reset.text())
        return {"against": plan.objections, "again": plan.reread}

    def dies(self, stream: Stream, root: str, moves: float) -> dict[str, Any]:
        """A start that ends when so many folders were moved; with half a move, when a part of the folder is deleted."""
        move, delete, left = hadoop_fs.HadoopFolder.move, hadoop_fs.HadoopFolder.delete_folder, [moves]

        def moved(folder: hadoop_fs.HadoopFolder, to: str) -> None:
            if not left[0]:
                raise RuntimeError("killed")
            left[0] -= 1
            move(folder, to)

        def deleted(folder: hadoop_fs.HadoopFolder, name: str = "metadata") -> None:
            delete(folder, name)
            raise RuntimeError("killed")

        run = self._run(stream, root)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hadoop_fs.HadoopFolder, "move", moved)
            if moves % 1:
                patch.setattr(hadoop_fs.HadoopFolder, "remove", deleted)
                patch.setattr(hadoop_fs.HadoopFolder, "delete_folder", deleted)
            try:
                run.start()
            except RuntimeError as e:
                return {"error": str(e)}
        run.stop()
        raise AssertionError("it started")

    def write_twice(self, stream: Stream, root: str) -> dict[str, Any]:
        """Two writers of an entry that look before either has written, as a driver and one that lost its lease would;
        then each call of a folder, and of a checkpoint that is reset."""
        jvm: Any = self._spark._jvm
        session: Any = self._spark._jsparkSession
        path = jvm.org.apache.hadoop.fs.Path
        manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(
            path(root), session.sessionState().newHadoopConf()
        )
        calls: list[object] = []
        for overwrite in (False, True):
            file = path(f"{root}/{overwrite}")
            writers = [manager.createAtomic(file, overwrite) for _ in range(2)]
            cancelled = manager.createAtomic(path(f"{root}/cancelled"), overwrite)
            cancelled.write(b"half")
            cancelled.cancel()
            for text, writer in zip(("first", "second"), writers, strict=True):
                writer.write(text.encode())
                try:
                    writer.close()
                    calls.append("written")
                except Py4JJavaError as e:
                    calls.append(e.java_exception.getClass().getSimpleName())
        folder = hadoop_fs.HadoopFolder(self._spark, root)
        calls += [folder.read("False"), folder.read("True"), folder.read_verified("missing")]
        calls += [sorted(folder.list_names("."))]
        calls += [folder.create("once", text) for text in ("mine", "another's")] + [folder.read("once")]
        folder.replace("False", "third")
        folder.move(f"{root}.before")
        calls += [folder.exists(), hadoop_fs.HadoopFolder(self._spark, f"{root}.before").read("False")]
        checkpoint = Checkpoint(self._spark, root, stream.name)
        checkpoint.check_reachable()
        for text in ("{}", '{"starts": {}}'):
            checkpoint.request_reset(text)
            waits = checkpoint.pending_reset()
            checkpoint.activate_pending_reset()
            calls.append(checkpoint.active_reset() == waits == text and checkpoint.pending_reset() is None)
        before = hadoop_fs.HadoopFolder(self._spark, f"{root}/{stream.name}.before")
        return {"calls": [*calls, before.read("penstock-reset.json")]}

    def _run(self, stream: Stream, root: str, book: InMemoryDataLossLog | None = None) -> StreamRun:
        figures = ProgressRow(stream.name, stream.app, "test")
        return StreamRun(replace(stream, every=0.0), self._spark, self._bootstrap, root, figures, book)


def main() -> None:
    # A stream that is blocked is tried again soon.
    stream_run.BLOCKED_RETRY_S = 1.0
    spark = open_session("far")
    runs = Runs(spark)
    for line in sys.stdin:
        given = json.loads(line)
        what, stream = getattr(runs, given.pop("what")), STREAMS[given.pop("stream")]
        try:
            found = what(stream, **given)
        except PenstockError as e:
            found = {"state": type(e).__name__, "error": str(e)}
        except Exception:
            found = {"fault": traceback.format_exc()}
        print(f"\n{json.dumps(found)}", flush=True)
    bridge.stop_jvm(spark)


if __name__ == "__main__":
    main()
