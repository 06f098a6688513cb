"""A dry run of a batch: as the stream's query runs it, but over a copy of its checkpoint and without output."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from uuid import uuid4

from pyspark.errors import StreamingQueryException

from penstock.errors import LeaseLost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.model.stream import Stream


class DryRunEnded(Exception):
    """Ends a dry run, so that its batch is not committed."""


@contextmanager
def checkpoint_copy(checkpoint: str) -> Iterator[Path | None]:
    """A temporary copy of a checkpoint; None if it is not on a local disk."""
    url = urlparse(checkpoint)
    if url.scheme not in ("", "file"):
        yield None
        return
    copy = Path(f"{url.path}.dry-run")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(url.path, copy, copy_function=_copied)
        # Spark stops a query when another of its id starts.
        (copy / ".metadata.crc").unlink(missing_ok=True)
        (copy / "metadata").write_text(json.dumps({"id": str(uuid4())}))
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _copied(source: str, target: str) -> None:
    """Link files of RocksDB and of folds, which are large and never change; copy others."""
    if source.endswith((".sst", ".arrow")):
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


@dataclass
class DryRun:
    """One run of the batch that is planned and not committed.

    Attributes:
        stream: The stream.
        checkpoint: The copy of its checkpoint.
        stopped: Whether the stream is being stopped.
        begin: Called before the batch is computed.
        error: Why it failed; None if it passed.
    """

    stream: Stream
    checkpoint: Path
    stopped: Callable[[], bool]
    begin: Callable[[], object]
    error: Exception | None = None
    _ran: bool = field(default=False, init=False)

    def run(self, rows: DataFrame) -> None:
        """Run a query that makes these rows; LeaseLost if the stream is stopped meanwhile."""
        query = (
            rows.writeStream.queryName(f"{self.stream.name} dry run")
            .outputMode(self.stream.output_mode.spark_mode)
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(self._batch)
            .start()
        )
        try:
            while not query.awaitTermination(1):
                if self.stopped():
                    raise LeaseLost(f"stream {self.stream.name} is being stopped")
        except StreamingQueryException as e:
            # The query always ends with an error, so that the batch is not committed.
            if not self._ran:
                self.error = e
        finally:
            query.stop()

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self.begin()
            frame.write.format("noop").mode("append").save()
        except Exception as e:
            self.error = e
        self._ran = True
        raise DryRunEnded(f"batch {batch_id} of a dry run is not committed")
