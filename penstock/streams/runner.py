"""From a declaration to a running query, and its figures."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import deque
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from penstock.catalog import topics_of
from penstock.control import ProgressRow
from penstock.errors import DeclarationError, LeaseLost
from penstock.kafka.admin import admin, partitions, topic_ids
from penstock.kafka.commits import COMMITS
from penstock.kafka.output import NONE, Mark, Message, Output
from penstock.settings import settings
from penstock.sinks.influxdb import InfluxWriter
from penstock.streams import records, source
from penstock.streams.aside import Aside
from penstock.streams.checkpoint import Batch, Checkpoint
from penstock.streams.declare import InfluxDB
from penstock.streams.session import session_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.streams.declare import Stream

log = logging.getLogger(__name__)

# A failing query is tried again at once, then ever more slowly: a broker that is away must not fill the log.
BACKOFF = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
RATE_WINDOW = 15.0
EPOCH = "1970-01-01T00:00:00.000Z"


class StreamRun:
    """One stream of a driver: starts its query, restarts it when it fails, writes its batches, keeps its figures."""

    def __init__(
        self, stream: Stream, spark: SparkSession, bootstrap: str, checkpoint_root: str, figures: ProgressRow
    ) -> None:
        self.stream = stream
        self.figures = figures
        self._spark = session_for(spark, stream)
        self._bootstrap = bootstrap
        self._checkpoint = Checkpoint(self._spark, checkpoint_root, stream.name)
        self._output: Output | InfluxWriter | None = None
        self._aside: Aside
        self._query: StreamingQuery | None = None
        self._recreated: set[str] = set()
        # Held while a batch is written: a stop waits for it, so that no transaction is cut.
        self._writing = threading.Lock()
        self._stopping = False
        self._writing_since: float | None = None
        self._committed = NONE
        self._failures = 0
        self._retry_at = 0.0
        self._progress_at = ""
        self._seen: deque[tuple[float, int]] = deque()
        self._figures_lock = threading.Lock()
        self.offsets: dict[str, dict[int, int]] = {}

    # Life

    @property
    def running(self) -> bool:
        """Started and not stopped; its query may have failed and wait to be tended."""
        return self._query is not None

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def writing_for(self) -> float:
        """Seconds since the output of the present batch began; 0 if none is being written."""
        since = self._writing_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        """Start the query from its checkpoint; earlier writers of the same stream are fenced first."""
        self._set(state="starting")
        self._stopping = False
        self._output = self._open_output()
        try:
            self._topics_exist()
            self._committed = self._output.committed()
            if self._recreated:
                self._checkpoint.forget(self._recreated)
                self._recreated = set()
            self._aside = Aside(self.stream, self._spark, self._bootstrap)
            frames = {
                name: source.stream(self._spark, self.stream, name, self._bootstrap) for name in self.stream.inputs
            }
            rows = records.encode(self.stream.transform(**frames), self.stream.key, self.stream.value)
            writer = (
                rows.writeStream.queryName(self.stream.name)
                .outputMode(self.stream.promise.mode)
                .option("checkpointLocation", self._checkpoint.path)
                .foreachBatch(self._write)
            )
            if self.stream.every:
                writer = writer.trigger(processingTime=f"{self.stream.every} seconds")
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.stream.name)
            self._query = writer.start()
        except BaseException:
            self._close_output()
            raise
        self._set(state="idle")
        log.info("stream %s started from batch %d", self.stream.name, self._committed.batch + 1)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop between two batches; one that has not begun to write is run again at the next start."""
        query = self._query
        if query is not None:
            # Spark's stop waits for the callback: that must find the flag, not a lock held here.
            self._stopping = True
            if self._writing.acquire(timeout=timeout):
                self._writing.release()
            try:
                query.stop()
            except StreamingQueryException as e:
                # A batch that was about to be written; it is run again at the next start.
                log.info("stream %s was stopped in the middle of a batch: %s", self.stream.name, _root_message(e))
            self._catch_up()
            self._query = None
        self._close_output()
        self._set(state="stopped", rows_per_s=0.0)

    def settle(self) -> None:
        """Wait until all that is there has been read and written, and the figures say so. For tests and tools."""
        assert self._query is not None
        self._query.processAllAvailable()
        # Processing ends with the last batch's commit; its progress comes after.
        while self.figures.batch_id != self._committed.batch:
            time.sleep(0.01)
            self._catch_up()

    def tend(self) -> None:
        """Start what should run and restart what failed. LeaseLost from the output comes through to the caller."""
        if self._query is not None:
            if self._query.isActive:
                return
            self._failed(self._query.exception())
            self._catch_up()
            self._query = None
            self._close_output()
        if time.monotonic() < self._retry_at:
            return
        try:
            self.start()
        except Exception as e:
            # A transform may raise anything; the other streams of the app go on.
            self._failed(e)

    def _failed(self, cause: BaseException | None) -> None:
        delay = BACKOFF[min(self._failures, len(BACKOFF) - 1)]
        self._failures += 1
        self._retry_at = time.monotonic() + delay
        message = _root_message(cause)
        self._set(state="failing", error=message, error_at=int(time.time() * 1000), restarts=self.figures.restarts + 1)
        log.error("stream %s failed and is tried again in %g s: %s", self.stream.name, delay, message)

    def _open_output(self) -> Output | InfluxWriter:
        if isinstance(self.stream.output, InfluxDB):
            return InfluxWriter(settings().influxdb_url.get_secret_value(), self.stream.output.database)
        return Output(self.stream.name, self.stream.group, self._bootstrap)

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None

    def _topics_exist(self) -> None:
        """Say which topic is missing, instead of a source that waits for it or an output that is made by chance."""
        there = partitions(admin(self._bootstrap), self._bootstrap)
        wanted = {topic.name for topic in (*topics_of(self.stream), COMMITS)}
        if missing := sorted(wanted - there.keys()):
            raise DeclarationError(
                f"stream {self.stream.name} needs topics the broker does not have",
                got=", ".join(missing),
                fix="create them with `penstock topics --apply`",
            )

    # Output

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        with self._writing:
            query, output = self._query_id(), self._output
            if output is None or self._stopping:
                raise LeaseLost(f"stream {self.stream.name} is being stopped")
            if query == self._committed.query and batch_id <= self._committed.batch:
                # Its output is out already; the rows are consumed all the same, so that the state is committed.
                frame.write.format("noop").mode("append").save()
                log.info("stream %s: batch %d was written before the restart", self.stream.name, batch_id)
                return
            batch = self._checkpoint.batch(batch_id)
            ids = self._same_topics(batch)
            table = frame.toArrow()
            execution = self._execution()
            dead = list(self._aside.dead(batch, execution))
            late, kept = self._aside.late(batch, execution)
            rows = (
                Message(self.stream.output.name, _bytes(k), _bytes(v))
                for chunk in table.to_batches()
                for k, v in zip(chunk.column(0).to_pylist(), chunk.column(1).to_pylist(), strict=True)
            )
            mark = Mark(query, batch_id, batch.ends, ids)
            self._writing_since = time.monotonic()
            try:
                written = output.write(chain(rows, dead, kept), mark)
            finally:
                self._writing_since = None
            self._committed = mark
            with self._figures_lock:
                self.figures.rows_out += written - len(dead) - len(kept)
                self.figures.dead += len(dead)
                self.figures.late += late
                self.offsets = batch.ends
            if dead:
                log.warning(
                    "stream %s: %d records of batch %d went to the dead letters, the first: %s",
                    self.stream.name, len(dead), batch_id, dict(dead[0].headers).get("penstock.reason", b"").decode(),
                )  # fmt: skip

    def _same_topics(self, batch: Batch) -> dict[str, str]:
        """The ids of the topics that match a pattern. A DeclarationError stops the query if one is not what it was.

        Spark goes on at the old offset of a topic that was deleted and created again: it would miss the records before
        it. The query starts again without that offset, and so from the topic's first record.
        """
        patterns = [given.pattern for given in self.stream.inputs.values() if given.pattern]
        names = [t for t in batch.ends if any(re.fullmatch(p, t) for p in patterns)]
        ids = topic_ids(admin(self._bootstrap), names, self._bootstrap)
        known = self._committed.ids
        self._recreated = {t for t in ids if t in batch.starts and known.get(t, ids[t]) != ids[t]}
        if self._recreated:
            raise DeclarationError(
                f"stream {self.stream.name} reads topics that were deleted and created again",
                got=", ".join(sorted(self._recreated)),
                fix="nothing: it starts again at their first records",
            )
        return ids

    def _query_id(self) -> str:
        # The callback may run before start() has returned.
        active = [q for q in self._spark.streams.active if q.name == self.stream.name]
        return str(active[0].id) if active else str(self._query.id if self._query else "")

    def _execution(self) -> Any:
        active = [q for q in self._spark.streams.active if q.name == self.stream.name]
        return active[0]._jsq.streamingQuery().lastExecution()

    # Figures

    def _set(self, **values: Any) -> None:
        with self._figures_lock:
            for key, value in values.items():
                setattr(self.figures, key, value)

    def _catch_up(self) -> None:
        """Take the progress of batches that ended since the last look into the figures.

        A listener in Python would be told of each batch at once, by a hundred calls between the two languages: that was
        a third of a busy driver's CPU time.
        """
        query = self._query
        if query is None:
            return
        with self._figures_lock:
            recent = query._jsq.recentProgress()
            new: list[dict[str, Any]] = []
            for i in reversed(range(len(recent))):
                found = json.loads(recent[i].json())
                if found["timestamp"] == self._progress_at:
                    break
                new.append(found)
            for found in reversed(new):
                self._take(found)

    def _take(self, p: dict[str, Any]) -> None:
        self._progress_at = p["timestamp"]
        if p["batchId"] < 0 or not p["durationMs"]:
            return
        f = self.figures
        f.rows_in += p["numInputRows"]
        if p["batchId"] != f.batch_id:
            f.batch_id, f.batch_ms = p["batchId"], int(p["durationMs"].get("triggerExecution", 0))
            f.batch_at = _epoch_ms(p["timestamp"]) + f.batch_ms
            self._failures = 0
        if watermark := _epoch_ms(p.get("eventTime", {}).get("watermark", EPOCH)):
            f.watermark = watermark
        if p["stateOperators"]:
            f.state_rows = sum(o["numRowsTotal"] for o in p["stateOperators"])
            f.state_bytes = sum(o["memoryUsedBytes"] for o in p["stateOperators"])

    def lag(self, offsets: dict[str, dict[int, int]], ends: dict[tuple[str, int], int]) -> None:
        """Set the lag, in records, from the offsets done and the topics' ends."""
        topics = {
            topic: {
                "lag": sum(max(0, ends.get((topic, p), at) - at) for p, at in parts.items()),
                "offsets": {str(p): at for p, at in parts.items()},
            }
            for topic, parts in offsets.items()
        }
        self._set(topics=topics, lag=sum(t["lag"] for t in topics.values()))

    def report(self) -> ProgressRow:
        """The figures as they stand: a copy, with the rate over the last seconds."""
        self._catch_up()
        with self._figures_lock:
            now = time.monotonic()
            self._seen.append((now, self.figures.rows_in))
            while len(self._seen) > 2 and now - self._seen[0][0] > RATE_WINDOW:
                self._seen.popleft()
            since, rows = self._seen[0]
            self.figures.rows_per_s = round((self.figures.rows_in - rows) / (now - since), 1) if now > since else 0.0
            if self.figures.state in ("idle", "running"):
                self.figures.state = "running" if self.figures.rows_per_s else "idle"
            return replace(self.figures)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _epoch_ms(iso: str) -> int:
    """Epoch ms of a time in a query's progress; 0, for the watermark, where there is none yet."""
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


def _root_message(cause: BaseException | None) -> str:
    """The one line that says what went wrong: Spark wraps an error in layers of stack trace, ours and its own."""
    if cause is None:
        return "the query ended by itself"
    lines = str(cause).splitlines()
    found = next((line.strip() for line in lines if line.strip()), type(cause).__name__)
    behind_traceback = False
    for line in lines:
        if "Traceback (most recent call last):" in line:
            behind_traceback = True
        elif behind_traceback and line[:1].strip():
            found, behind_traceback = line, False
        elif line.startswith("Caused by: "):
            found = line.removeprefix("Caused by: ")
    return found.removeprefix("penstock.errors.")[:1000]
