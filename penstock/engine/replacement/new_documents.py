"""The documents of a sink's new version, which are built beside those of the running version and shown at the cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.engine.checkpoint.offset_log import by_topic
from penstock.engine.operations.reset_plan import input_logs, start_offsets
from penstock.engine.replacement.comparison import EXAMPLES, WIDTH, VersionComparison
from penstock.engine.replacement.state_needs import BuildStart
from penstock.errors import DeclarationError, Refused
from penstock.kafka.admin import admin, topic_config, topic_ids
from penstock.kafka.dead_letters import printable
from penstock.model.output import NO_COMMIT, Writer, WriterOwner, open_store
from penstock.model.target_versions import TargetVersions, open_versions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.kafka.commit_marker import TopicAndPartition
    from penstock.model.output import Output
    from penstock.model.stream import Stream

REASON = "reason"


def document_start(stream: Stream, bootstrap: str, since: int | None) -> BuildStart:
    """Where the new version of a sink begins to read: at the first record, as its documents are made of all.

    Args:
        stream: The new version.
        bootstrap: The broker.
        since: Epoch ms to begin at, if documents of records before may be missing; None for all records.

    Raises:
        DeclarationError: Records were deleted that documents are made of, or there is none.
    """
    counts, logs = input_logs(stream, bootstrap)
    if all(first == end for first, end in logs.values()):
        raise DeclarationError(
            f"the inputs of sink {stream.name} have no record, so there is no document to build",
            got=", ".join(sorted(counts)) or "no topic",
            hint=f"release its app: `penstock streams release {stream.app}`",
        )
    for (topic, partition), (first, _) in sorted(logs.items()) if since is None else ():
        # Compaction keeps the newest record of each key, and the offsets.
        if first and "delete" in topic_config(topic, "cleanup.policy", bootstrap):
            raise DeclarationError(
                f"the inputs of sink {stream.name} do not hold all that its documents are made of",
                got=f"{topic}[{partition}] begins at offset {first}",
                hint="give --from TIME if documents of earlier records may be missing in the new version",
            )
    starts = start_offsets(stream, bootstrap, logs, "earliest" if since is None else since)
    if all(start >= logs[place][1] for place, start in starts.items()):
        # Spark plans no first batch without a record.
        place = max(logs, key=lambda one: logs[one][1] - logs[one][0])
        starts = {**starts, place: logs[place][1] - 1}
    records = sum(logs[place][1] - start for place, start in starts.items())
    return BuildStart(by_topic(starts), topic_ids(admin(bootstrap), counts, bootstrap), 0, since, records)


class NewDocuments:
    """Writes the rows of a new version's steps to its documents. Documents of two versions are not compared.

    It stands where a stream with topics has `StepRows` and `OutputComparison`. Rows that the store refuses are kept in
    files: the first batch after the cut gives them to the store again, and so they become dead letters.

    Args:
        stream: The sink.
        output: Its output.
        folder: For rows that are refused.
        bootstrap: The broker.
        replacement: The id of the replacement.
        back: Whether the documents before are shown again.
    """

    def __init__(
        self, stream: Stream, output: Output, folder: Path, bootstrap: str, replacement: str, *, back: bool
    ) -> None:
        self.max_records = stream.max_records
        self._output, self._folder, self._id, self._back = output, folder, replacement, back
        self._owner = WriterOwner(stream.name, stream.group, bootstrap)
        self._versions: TargetVersions | None = None
        self._writer: Writer | None = None
        self._begun = False

    def open(self) -> None:
        """Make the target of the documents, or go on with what another process of the replacement has made."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._versions = open_versions(self._output, self._id, back=self._back)
        self._versions.prepare()
        self._writer = open_store([self._versions.new], self._owner)

    def write(self, step: int, rows: Mapping[str, pa.Table]) -> None:
        """Write the rows of a step. Wait if the store takes nothing for the moment; the step is run again then."""
        assert self._versions
        assert self._writer
        table, path = rows[self._output.name], self._folder / f"{step}.parquet"
        path.unlink(missing_ok=True)
        try:
            self._writer.write({self._versions.new.name: table}, NO_COMMIT)
        except Refused as e:
            reasons = e.rows[self._versions.new.name]
            refused = table.take(sorted(reasons))
            column = pa.array([reasons[number] for number in sorted(reasons)])
            fresh = path.with_suffix(".fresh")
            pq.write_table(refused.append_column(REASON, column), fresh)
            fresh.replace(path)

    @property
    def has_begun(self) -> bool:
        """Whether it was where the running version is."""
        return self._begun

    def begin(self, *_: object) -> None:
        """It is where the running version is."""
        self._begun = True

    def follow(self, *_: object) -> None:
        """Nothing: documents are not compared."""

    def read_running(self, _spark: SparkSession, _ends: dict[TopicAndPartition, int]) -> None:
        """Nothing: documents are not compared."""

    def compare(self) -> VersionComparison:
        """How many rows the store has refused, with examples."""
        result = VersionComparison()
        for path in self._refused():
            table = pq.read_table(path, columns=["id", REASON])
            result.refused += table.num_rows
            for row in table.slice(0, max(0, EXAMPLES - len(result.examples))).to_pylist():
                key = None if row["id"] is None else printable(row["id"], WIDTH)
                result.examples.append(
                    {"output": self._output.name, "outcome": "refused", "key": key, "reason": row[REASON]}
                )
        return result

    def rows_to_write(self, **_: bool) -> dict[str, pa.Table]:
        """The rows that the store has refused, by output."""
        tables = [pq.read_table(path).drop_columns([REASON]) for path in self._refused()]
        return {self._output.name: pa.concat_tables(tables)} if tables else {}

    def _refused(self) -> list[Path]:
        return sorted(self._folder.glob("*.parquet"), key=lambda path: int(path.stem))

    def close(self) -> None:
        """Close what it holds; the documents stay."""
        if self._writer:
            self._writer.close()
        if self._versions:
            self._versions.close()
        self._writer = self._versions = None
