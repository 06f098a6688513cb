"""Steps of a new version that read its input from an archive in place of the topic.

Each step reads the records between offsets, as a step that reads the topic does. Only while it runs, the entry of its
batch in Spark's offset log is that of a file source, whose log names the step's files. Then it is the entry that a
step of the topic has: so the next step goes on from its offsets, of the archive or of the topic.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from penstock.engine.checkpoint.layout import PlannedBatch
from penstock.engine.checkpoint.offset_log import BatchPlan
from penstock.engine.query.source import RECORD_TYPES
from penstock.engine.replacement.step_offsets import count_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.checkpoint.layout import Checkpoint
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.replacement.input_archive import InputArchive

STEP_FILE = "archive-step.json"
FILES, CACHE = "archived", "archive-cache"
# Records of a step. One that is killed is read again.
ARCHIVE_STEP_RECORDS = 4_000_000
# With fewer records in the archive, the topic is read.
LEAST_RECORDS = 100_000
# Lines of a source in the offset log: the first entry of a file source's log, and none.
FIRST_FILES, NO_OFFSETS = '{"logOffset":0}', "-"


class ArchiveSteps:
    """The steps of one new version.

    Args:
        spark: Its session.
        folder: Its folder.
        checkpoint: Its checkpoint; no query uses it while a step is planned.
        archive: The archive of its only input.

    Attributes:
        batch: The batch of the last step that was planned, with the offsets of the topic.
    """

    batch: PlannedBatch

    def __init__(self, spark: SparkSession, folder: Path, checkpoint: Checkpoint, archive: InputArchive) -> None:
        self._spark, self._folder, self._checkpoint, self._archive = spark, folder, checkpoint, archive

    def ends(self, at: TopicOffsets, wanted: TopicOffsets, ids: Mapping[str, str]) -> TopicOffsets:
        """The next offsets behind what the archive has of some records.

        Args:
            at: The next offsets of the new version.
            wanted: Where it is to come.
            ids: The ids of the topics that it reads.

        Returns:
            At most `wanted`; empty if the rest is to be read from the topic.
        """
        own = self._own_ends(at, wanted)
        if count_between(at, own) < LEAST_RECORDS <= count_between(at, wanted):
            self._archive.reader.refresh()
            own = self._own_ends(at, wanted)
        if count_between(at, own) >= LEAST_RECORDS and self._archive.is_of(ids):
            return own
        shutil.rmtree(self._folder / CACHE, ignore_errors=True)
        return {}

    def _own_ends(self, at: TopicOffsets, wanted: TopicOffsets) -> TopicOffsets:
        topic, reader = self._archive.topic, self._archive.reader
        starts, begins = at.get(topic, {}), reader.begins
        ends = {p: min(end, reader.ends.get(p, 0)) for p, end in wanted.get(topic, {}).items()}
        return {topic: {p: end for p, end in ends.items() if p in begins and begins[p] <= starts.get(p, 0) < end}}

    def records(self) -> DataFrame:
        """The records of the step that is planned when a query reads them."""
        schema = ", ".join(f"`{name}` {kind}" for name, kind in RECORD_TYPES.items())
        return self._spark.readStream.schema(schema).parquet((self._folder / FILES).as_uri())

    def plan(self, number: int, at: TopicOffsets, entry: str, before: str) -> None:
        """Plan a step: it is the next batch of a query that reads `records`.

        Args:
            number: Of the batch.
            at: Its first offsets.
            entry: The offset log's entry of a batch that reads the same records from the topic.
            before: The entry of the batch before; empty for none.

        Raises:
            SinkError: A file of the archive is damaged or missing.
            Wait: The store does not answer.
        """
        files, cache, topic = self._folder / FILES, self._folder / CACHE, self._archive.topic
        shutil.rmtree(files, ignore_errors=True)
        for one in (files, cache):
            one.mkdir(parents=True, exist_ok=True)
        now, earlier = BatchPlan.read(entry), BatchPlan.read(before)
        assert now
        paths = self._archive.reader.fetch(at.get(topic, {}), now.ends[topic], files, cache)
        fresh = self._folder / f"{STEP_FILE}.fresh"
        fresh.write_text(json.dumps({"batch": number, "entry": entry, "before": before}))
        fresh.replace(self._folder / STEP_FILE)
        self._checkpoint.write_source_log(_source_log(paths))
        if before:
            self._checkpoint.plan_batch(number - 1, _with_source(before, NO_OFFSETS))
        self._checkpoint.plan_batch(number, _with_source(entry, FIRST_FILES))
        watermark = earlier.watermark_ms if earlier else 0
        self.batch = PlannedBatch(number, now.at_ms, watermark, at, now.ends, now, earlier)


def settle(checkpoint: Checkpoint, folder: Path) -> None:
    """End the last step that read an archive, which may have been killed: it is as if it had read the topic, or as if
    it had not begun.

    Args:
        checkpoint: The checkpoint of the new version, which no query uses.
        folder: Its folder.
    """
    state = folder / STEP_FILE
    if not state.exists():
        return
    step = json.loads(state.read_text())
    number, before = step["batch"], step["before"]
    if number in checkpoint.committed_batches():
        checkpoint.plan_batch(number, step["entry"])
    else:
        checkpoint.withdraw_plan(number)
        if before:
            checkpoint.plan_batch(number - 1, before)
    checkpoint.forget_sources()
    shutil.rmtree(folder / FILES, ignore_errors=True)
    state.unlink()


def _with_source(entry: str, line: str) -> str:
    """An entry of the offset log with another line of its only source."""
    version, metadata, _ = entry.split("\n")
    return "\n".join([version, metadata, line])


def _source_log(paths: Sequence[Path]) -> str:
    """An entry of the log of Spark's file source (FileStreamSourceLog, version 1)."""
    return "\n".join(["v1", *(json.dumps({"path": p.as_uri(), "timestamp": 0, "batchId": 0}) for p in paths)])
