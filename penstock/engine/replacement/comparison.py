"""Compares the rows of a new version with those that the running version has written.

Rows with a key are compared by the newest of each key. Rows without one are counted that both have written since the
new version caught up. What the running version wrote is read once, into Parquet files beside the new
version's, and DuckDB compares the files.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec.heartbeat import HEARTBEAT_KEY
from penstock.engine.checkpoint.offset_log import by_topic
from penstock.engine.query import source
from penstock.engine.replacement.step_rows import EARLIER_STEP, SCHEMA
from penstock.kafka.admin import admin, first_offsets, offsets_for_times
from penstock.kafka.dead_letters import printable

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.engine.replacement.step_rows import StepRows
    from penstock.kafka.commit_marker import TopicAndPartition
    from penstock.model.stream import Stream

STATE_FILE = "comparison.json"
# Examples of each kind of difference, and characters of a value.
EXAMPLES, WIDTH = 5, 300
ROW_COLUMNS = "key BLOB, value BLOB, step BIGINT, row BIGINT"
NEW_ROWS = (
    "SELECT key, value, regexp_extract(filename, '(-?[0-9]+)\\.parquet$', 1)::BIGINT AS step, file_row_number AS row "
    "FROM read_parquet({files}, hive_partitioning = false, filename = true, file_row_number = true)"
)
RUNNING = """SELECT *, (partition, "offset") >= (partition, since) AS fresh FROM running_files
    WHERE key IS NOT NULL QUALIFY row_number() OVER (PARTITION BY key ORDER BY "offset" DESC) = 1"""
# A row from before the running version counts only if that has written its key since.
KEYED = """
WITH new_rows AS (SELECT * FROM new_files WHERE key IS NOT NULL AND (step >= {first} OR step = {earlier})
    QUALIFY row_number() OVER (PARTITION BY key ORDER BY step DESC, row DESC) = 1),
  running AS ({running})
SELECT coalesce(n.key, r.key) AS key, n.value AS new, r.value AS running, n.step AS step,
  CASE WHEN r.key IS NULL THEN 'only_new' WHEN n.key IS NULL THEN 'only_running'
    WHEN {value_n} IS NOT DISTINCT FROM {value_r} THEN 'equal' ELSE 'different' END AS outcome
FROM new_rows n FULL JOIN running r ON n.key = r.key
WHERE CASE WHEN n.key IS NOT NULL THEN n.step <> {earlier} OR r.key IS NOT NULL
  ELSE r.fresh AND NOT EXISTS (FROM new_files e WHERE e.key = r.key) END
"""
UNKEYED = """
WITH new_rows AS (SELECT {value} AS value, count(*) AS n FROM new_files
    WHERE key IS NULL AND step >= {first} GROUP BY ALL),
  running AS (SELECT {value} AS value, count(*) AS n FROM running_files
    WHERE key IS NULL AND "offset" >= since GROUP BY ALL)
SELECT coalesce(n.value, r.value) AS value, coalesce(n.n, 0) AS new, coalesce(r.n, 0) AS running
FROM new_rows n FULL JOIN running r ON n.value IS NOT DISTINCT FROM r.value
"""


@dataclass
class VersionComparison:
    """How the rows of two versions differ.

    Attributes:
        compared: Rows that at least one of them has: newest rows of keys, or rows of an output without keys.
        equal: Rows that are the same.
        different: Keys whose rows differ.
        only_new: Rows that only the new version has.
        only_running: Rows that only the running version has.
        refused: Rows of a sink that its store refuses.
        examples: Some of the rows that are not equal: `output`, `outcome`, `key`, `new`, `running`; or that are
            refused: `output`, `outcome`, `key`, `reason`.
    """

    compared: int = 0
    equal: int = 0
    different: int = 0
    only_new: int = 0
    only_running: int = 0
    refused: int = 0
    examples: list[dict[str, str | None]] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether all rows are equal."""
        return self.compared == self.equal


class OutputComparison:
    """Compares the outputs of a new version with the topics that the running version writes.

    Args:
        stream: The new version.
        rows: Its rows.
        folder: For the rows of the running version.
        bootstrap: The broker.
        ignored: Columns of values that may differ. Values must then be JSON objects.
    """

    def __init__(
        self, stream: Stream, rows: StepRows, folder: Path, bootstrap: str, ignored: Collection[str] = ()
    ) -> None:
        self._stream, self._rows, self._folder, self._bootstrap = stream, rows, folder, bootstrap
        self._ignored = json.dumps(dict.fromkeys(ignored)) if ignored else ""
        # By output: the next offsets to read, and those since which both versions were compared live.
        self._next: dict[str, dict[int, int]] = {}
        self._since: dict[str, dict[int, int]] = {}
        self._first_step: int | None = None
        self._live_step: int | None = None

    def open(self) -> None:
        """Go on with what another process of the replacement has read."""
        if (self._folder / STATE_FILE).exists():
            state = json.loads((self._folder / STATE_FILE).read_text())
            self._next, self._since = (_with_numbers(state[name]) for name in ("next", "since"))
            self._first_step, self._live_step = state["first_step"], state["live_step"]

    @property
    def has_begun(self) -> bool:
        """Whether rows can be compared: the new version's state is complete."""
        return self._first_step is not None

    def begin(self, first_step: int, since_ms: int | None, ends: dict[TopicAndPartition, int]) -> None:
        """Begin to compare.

        Args:
            first_step: The new version's first step whose rows are complete.
            since_ms: Epoch ms: what the running version wrote before has no row of the new version; None for all.
            ends: The ends of the output topics, at the position of the new version.
        """
        begins = (
            first_offsets(admin(self._bootstrap), ends, self._bootstrap)
            if since_ms is None
            else {
                place: ends[place] if at is None else min(at, ends[place])
                for place, at in offsets_for_times(
                    admin(self._bootstrap), dict.fromkeys(ends, since_ms), self._bootstrap
                ).items()
            }
        )
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._next, self._since = by_topic(begins), by_topic(ends)
        self._first_step, self._live_step = first_step, None
        self._write_state()

    def follow(self, live_step: int, ends: dict[TopicAndPartition, int]) -> None:
        """The new version is where the running one is, for the first time: from here on rows without a key count.

        Args:
            live_step: The new version's first step whose rows the running version writes after these ends.
            ends: The ends of the output topics.
        """
        if self._live_step is None:
            self._live_step, self._since = live_step, by_topic(ends)
            self._write_state()

    def read_running(self, spark: SparkSession, ends: dict[TopicAndPartition, int]) -> None:
        """Read what the running version has written since the last call."""
        for topic, parts in by_topic(ends).items():
            begins = {p: self._next.get(topic, {}).get(p, 0) for p in parts}
            upto = {p: max(end, begins[p]) for p, end in parts.items()}
            if upto == begins:
                continue
            target = self._folder / topic / f"{sum(begins.values())}"
            frame = source.topic_records(spark, self._bootstrap, {topic: begins}, {topic: upto})
            frame = frame.where(~F.col("key").eqNullSafe(F.lit(HEARTBEAT_KEY)))
            # Of a process that was killed, the same range is read again.
            frame.select("key", "value", "partition", "offset").write.mode("overwrite").parquet(str(target))
            self._next[topic] = {**self._next.get(topic, {}), **upto}
            self._write_state()

    def compare(self) -> VersionComparison:
        """Compare all rows that were read."""
        result = VersionComparison()
        for output in self._stream.outputs.values():
            with duckdb.connect() as c:
                self._open_files(c, output.name)
                self._compare_keyed(c, output.name, result)
                self._compare_unkeyed(c, output.name, result)
        return result

    def rows_to_write(self, *, all_rows: bool = False, only_earlier: bool = False) -> dict[str, pa.Table]:
        """The new version's newest rows of keys for which the running version has another row or none, by output.

        Args:
            all_rows: Whether equal rows are among them.
            only_earlier: Whether only those are among them that it wrote before the running version replaced it.
        """
        chosen = "('different', 'only_new'" + (", 'equal')" if all_rows else ")")
        chosen += f" AND step = {EARLIER_STEP}" if only_earlier else ""
        # What a comparison ignores is written all the same.
        return self._rows_of(f"SELECT key, new AS value FROM ({self._keyed(ignored=False)}) WHERE outcome IN {chosen}")

    def running_rows(self) -> dict[str, pa.Table]:
        """The newest row of each key that the running version has written, by output."""
        return self._rows_of(f"SELECT key, value FROM ({RUNNING})")

    def _rows_of(self, query: str) -> dict[str, pa.Table]:
        """The result of a query over the files of each output, without outputs that have no rows."""
        rows = {}
        for output in self._stream.outputs.values():
            with duckdb.connect() as c:
                self._open_files(c, output.name)
                rows[output.name] = c.sql(query).to_arrow_table().cast(SCHEMA)
        return {name: table for name, table in rows.items() if table.num_rows}

    def _open_files(self, c: duckdb.DuckDBPyConnection, output: str) -> None:
        """Views of the files: `new_files` and `running_files`, which has the offset since which it is compared live."""
        files = [str(path) for path in self._rows.files(output).values()]
        c.execute(f"CREATE TABLE empty_rows ({ROW_COLUMNS})")
        new = NEW_ROWS.format(files=_quoted(files)) if files else "FROM empty_rows"
        c.execute(f"CREATE VIEW new_files AS {new}")
        live = self._since.get(output, {})
        c.execute("CREATE TABLE live (partition INTEGER, since BIGINT)")
        if live:
            c.executemany("INSERT INTO live VALUES (?, ?)", list(live.items()))
        running = sorted(str(path) for path in (self._folder / output).glob("*/*.parquet"))
        rows = (
            f"FROM read_parquet({_quoted(running)}, hive_partitioning = false)"
            if running
            else 'SELECT key, value, 0 AS partition, 0::BIGINT AS "offset" FROM empty_rows'
        )
        c.execute(
            f"CREATE VIEW running_files AS SELECT r.*, coalesce(l.since, 0) AS since FROM ({rows}) r "
            "LEFT JOIN live l ON l.partition = r.partition"
        )

    def _keyed(self, *, ignored: bool) -> str:
        value_n, value_r = (self._comparable(f"{table}.value", ignored=ignored) for table in "nr")
        return KEYED.format(
            first=self._first_step or 0, earlier=EARLIER_STEP, running=RUNNING, value_n=value_n, value_r=value_r
        )

    def _compare_keyed(self, c: duckdb.DuckDBPyConnection, output: str, result: VersionComparison) -> None:
        c.execute(f"CREATE TABLE compared AS {self._keyed(ignored=True)}")
        for outcome, count in c.execute("SELECT outcome, count(*) FROM compared GROUP BY 1").fetchall():
            setattr(result, outcome, getattr(result, outcome) + count)
            result.compared += count
        query = (
            "SELECT outcome, key, new, running FROM compared WHERE outcome <> 'equal' "
            f"QUALIFY row_number() OVER (PARTITION BY outcome ORDER BY key) <= {EXAMPLES} ORDER BY outcome, key"
        )
        for outcome, *texts in c.execute(query).fetchall():
            result.examples.append(_example(output, outcome, *texts))

    def _compare_unkeyed(self, c: duckdb.DuckDBPyConnection, output: str, result: VersionComparison) -> None:
        query = UNKEYED.format(value=self._comparable("value", ignored=True), first=self._live_step or 0)
        c.execute(f"CREATE TABLE counted AS {query}")
        totals = "sum(greatest(new, running)), sum(least(new, running)), sum(new), sum(running)"
        compared, equal, new, running = (
            int(n or 0) for n in c.execute(f"SELECT {totals} FROM counted").fetchone() or ()
        )
        result.compared += compared
        result.equal += equal
        result.only_new += new - equal
        result.only_running += running - equal
        query = f"SELECT value, new > running FROM counted WHERE new <> running ORDER BY 1 LIMIT {EXAMPLES}"
        for value, more_new in c.execute(query).fetchall():
            outcome = "only_new" if more_new else "only_running"
            result.examples.append(_example(output, outcome, None, *((value, None) if more_new else (None, value))))

    def _comparable(self, column: str, *, ignored: bool) -> str:
        """The expression of a value that is compared."""
        if not (ignored and self._ignored):
            return column
        # RFC 7396: a member that is null in the patch is removed.
        text = f"TRY_CAST(decode({column}) AS JSON)"
        patch = self._ignored.replace("'", "''")
        return f"coalesce(json_merge_patch({text}, '{patch}')::VARCHAR, {column}::VARCHAR)"

    def _write_state(self) -> None:
        state = {"next": self._next, "since": self._since, "first_step": self._first_step, "live_step": self._live_step}
        fresh = self._folder / f"{STATE_FILE}.fresh"
        fresh.write_text(json.dumps(state))
        fresh.replace(self._folder / STATE_FILE)


def _example(output: str, outcome: str, key: Any, new: Any, running: Any) -> dict[str, str | None]:
    def text(value: Any) -> str | None:
        return None if value is None else printable(value if isinstance(value, bytes) else str(value), WIDTH)

    return {"output": output, "outcome": outcome, "key": text(key), "new": text(new), "running": text(running)}


def _with_numbers(offsets: dict[str, dict[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(p): at for p, at in parts.items()} for topic, parts in offsets.items()}


def _quoted(texts: list[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"
