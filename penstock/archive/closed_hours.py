"""The closed hours of an archive: a table beside that of its records, with a row for each time that an hour was closed.

A row is a promise: at that time everything that the topic held was archived, and the hour had these records. An hour
that has other records now was opened again by late ones; it gets a row of the next revision when it is closed again.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import MonthTransform
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from penstock.archive import catalog
from penstock.archive.columns import COMMON_PROPERTIES
from penstock.archive.state import Span, Spans, hour_start
from penstock.errors import SinkError, Wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import Table

    from penstock.archive.stream import ArchiveOutput

SPAN = StructType(
    NestedField(11, "topic", StringType()),
    NestedField(12, "partition", IntegerType()),
    NestedField(13, "records", LongType()),
    NestedField(14, "first_offset", LongType()),
    NestedField(15, "last_offset", LongType()),
    NestedField(16, "hash_sum", StringType(), doc="sum of the hashes of its records modulo 2^64, hexadecimal"),
)
SCHEMA = Schema(
    NestedField(1, "hour", TimestamptzType(), doc="its start"),
    NestedField(2, "revision", IntegerType(), doc="1 when it is closed first"),
    NestedField(3, "closed_at", TimestamptzType()),
    NestedField(4, "records", LongType()),
    NestedField(5, "bytes", LongType()),
    NestedField(6, "files", IntegerType()),
    NestedField(7, "snapshot", LongType(), doc="of the table of records, which has these records"),
    NestedField(8, "partitions", ListType(10, SPAN, element_required=False), doc="its records by partition"),
)
MOST_FILES = 10
"""Files of one row each that are not worth joining."""
PARTITIONS = PartitionSpec(PartitionField(1, 1000, MonthTransform(), "hour_month"))


@dataclass(frozen=True)
class ClosedHour:
    """An hour when it was closed last.

    Attributes:
        closed_at: Epoch seconds.
        snapshot: Of the table of records.
    """

    hour: str
    revision: int
    closed_at: float
    records: int
    bytes: int
    files: int
    snapshot: int
    spans: Spans

    def row(self) -> dict[str, object]:
        parts = [(*name.rpartition("/")[::2], span) for name, span in sorted(self.spans.items())]
        return {
            **{name: value for name, value in asdict(self).items() if name != "spans"},
            "hour": hour_start(self.hour),
            "closed_at": datetime.fromtimestamp(self.closed_at, UTC),
            "partitions": [
                {
                    "topic": topic, "partition": int(partition), "records": span.rows, "first_offset": span.first,
                    "last_offset": span.last, "hash_sum": f"{span.sum:016x}",
                }
                for topic, partition, span in parts
            ],
        }  # fmt: skip

    @classmethod
    def read(cls, row: dict[str, object]) -> ClosedHour:
        values: dict[str, object] = dict(row)
        parts = values.pop("partitions")
        spans = {
            f"{p['topic']}/{p['partition']}": Span(
                p["records"], p["first_offset"], p["last_offset"], int(p["hash_sum"], 16)
            )
            for p in parts  # type: ignore[attr-defined]
        }
        hour, closed_at = values.pop("hour"), values.pop("closed_at")
        assert isinstance(hour, datetime)
        assert isinstance(closed_at, datetime)
        return cls(hour=f"{hour:%Y-%m-%dT%H}", closed_at=closed_at.timestamp(), spans=spans, **values)  # type: ignore[arg-type]


class ClosedHours:
    """The closed hours of an archive, as of each call; they are read again if the table has changed.

    Args:
        table: The name of its table of records.
        location: The folder of that table.
    """

    def __init__(self, table: str, location: str = "") -> None:
        self.name, self._location = f"{table}_hours", f"{location}_hours"
        self._newest: tuple[int | None, str, dict[str, ClosedHour]] = (None, "", {})

    @classmethod
    def of(cls, output: ArchiveOutput) -> ClosedHours:
        return cls(output.table, output.location)

    def read(self, start: datetime | None = None, end: datetime | None = None) -> dict[str, ClosedHour]:
        """The hours that start in an interval, each as it was closed last.

        Raises:
            SinkError: The catalog or the store refuses.
            Wait: The catalog or the store does not answer.
        """
        bounds = ((">=", start), ("<=", end))
        rows = " AND ".join(f"hour {than} '{at.isoformat()}'" for than, at in bounds if at) or AlwaysTrue()
        with self._errors():
            if (table := self._find()) is None:
                return {}
            snapshot = table.current_snapshot()
            version = (snapshot.snapshot_id if snapshot else None, str(rows))
            if self._newest[:2] != version:
                found = table.scan(rows).to_arrow().sort_by("revision").to_pylist()
                self._newest = (*version, {one.hour: one for one in map(ClosedHour.read, found)})
            return self._newest[2]

    def add(self, hours: Sequence[ClosedHour]) -> None:
        """Add hours that are closed. As `read`."""
        with self._errors():
            table = self._find() or self._create()
            rows = pa.Table.from_pylist([hour.row() for hour in hours], table.schema().as_arrow())
            table.append(rows)

    def join_files(self, before: datetime) -> int:
        """Write the rows of hours before a time into one file for each month, if they are in many; returns in how many
        they were, or 0. As `read`."""
        rows = f"hour < '{before.isoformat()}'"
        with self._errors():
            if (table := self._find()) is None:
                return 0
            files = [task.file for task in table.scan(rows).plan_files()]
            if len(files) <= MOST_FILES + len({str(file.partition) for file in files}):
                return 0
            table.overwrite(table.scan(rows).to_arrow().sort_by("hour"), rows)
            return len(files)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with catalog.errors(f"table {self.name}"):
                yield
        except CommitFailedException as e:
            raise Wait(f"another program has changed table {self.name}", got=str(e)[:300], seconds=0.5) from e
        except OSError as e:
            # Of a file's content: the store's own errors are raised as ours where it is called.
            raise SinkError(f"table {self.name} cannot be read", got=str(e)[:300], hint=catalog.DAMAGE_HINT) from e

    def _find(self) -> Table | None:
        """The table as it is now."""
        try:
            return catalog.open_catalog().load_table(self.name)
        except NoSuchTableError:
            return None

    def _create(self) -> Table:
        tables = catalog.open_catalog()
        try:
            return tables.create_table(
                self.name, SCHEMA, location=self._location, partition_spec=PARTITIONS,
                properties=COMMON_PROPERTIES,
            )  # fmt: skip
        except TableAlreadyExistsError:
            return tables.load_table(self.name)
