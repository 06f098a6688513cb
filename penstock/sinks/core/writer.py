"""What the writers of all stores share: counters, growing waits, and how refused rows are reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar, cast

import pyarrow as pa

from penstock.errors import Refused, Wait
from penstock.model.output import NO_COMMIT, CommitMarker, Output, WriterOwner
from penstock.sinks.core.bulk import SinkBatchResult
from penstock.sinks.core.connections import required_url
from penstock.sinks.core.document import DocumentOutput


@dataclass
class SinkCounters:
    """What a writer has done since it was opened.

    Attributes:
        written: rows written.
        conflicts: rows of which the store had newer versions.
        retried: items sent again.
        refused: rows refused.
        bytes: bytes sent.
    """

    written: int = 0
    conflicts: int = 0
    retried: int = 0
    refused: int = 0
    bytes: int = 0


OutputT = TypeVar("OutputT", bound=DocumentOutput)


class DocumentWriter(ABC, Generic[OutputT]):
    """Writes a sink's batches into one store.

    Args:
        url: of the store, with user and password if it asks for them.
        output: what is written.

    Attributes:
        product: name of the store, for messages.
        longest_wait_s: to which the wait for a store grows that takes nothing, from 1 s.
        counters: of batches that are written; `retried` and `bytes` also of those that are given again.
    """

    product: ClassVar[str]
    longest_wait_s: ClassVar[float] = 30.0

    def __init__(self, url: str, output: OutputT) -> None:  # noqa: ARG002
        self.counters = SinkCounters()
        self.output = output
        self._waits = 0

    @classmethod
    def open(cls, owner: WriterOwner, outputs: Sequence[Output]) -> Self:  # noqa: ARG003
        """See `penstock.model.output.Opener`. SinkError if the URL of the store is not set."""
        (output,) = outputs
        assert isinstance(output, DocumentOutput)
        return cls(required_url(output.connection, output.name), cast("OutputT", output))

    def committed(self) -> CommitMarker:
        """NO_COMMIT: a batch that is run again is written again, and changes nothing."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:  # noqa: ARG002
        """Write a batch.

        Returns:
            The number of documents written or deleted.

        Raises:
            Wait: the store is away or busy.
            Refused: after all others are written, for rows that the store can never take.
            SinkError: anything else.
        """
        table = rows.get(self.output.name)
        if table is None:
            return 0
        result = SinkBatchResult()
        try:
            self._write_batch(table, result)
        except Wait as e:
            self._waits += 1
            e.seconds = max(e.seconds, min(self.longest_wait_s, 2.0 ** min(self._waits - 1, 10)))
            raise
        finally:
            # Also of a batch that is given again: that the store is too busy shows while it is.
            self.counters.retried += result.retried
            self.counters.bytes += result.bytes
        self._waits = 0
        self.counters.written += result.written
        self.counters.conflicts += result.conflicts
        self.counters.refused += len(result.refused)
        self._housekeeping()
        if result.refused:
            refused = dict(sorted(result.refused.items()))
            raise Refused(
                f"{self.product} can never take {len(refused)} rows for {self.output.name}",
                rows={self.output.name: refused},
                got=next(iter(refused.values())),
                written=result.written,
            )
        return result.written

    @abstractmethod
    def _write_batch(self, table: pa.Table, result: SinkBatchResult) -> None:
        """Write rows, with the columns of `DocumentOutput.columns`. result: gets the outcome, also if it raises."""

    def _housekeeping(self) -> None:
        """Called after each batch that is written."""

    @abstractmethod
    def close(self) -> None:
        """Release resources."""
