"""Reads back what a store keeps of a topic's records, as the engine sees it."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol

from penstock.errors import optional_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.model.output import Output


class RecordReader(Protocol):
    """The records of a topic in a store, as of the last `refresh`.

    Every method raises SinkError if the store refuses or lacks something, and Wait if it does not answer.
    """

    def refresh(self) -> None:
        """See what the store holds now."""

    @property
    def topic_id(self) -> str:
        """The broker's id of the topic; empty if nothing of it is kept, or an offset is not of one record."""

    @property
    def begins(self) -> Mapping[int, int]:
        """By partition, the offset from which on it holds all records up to `ends`; it may lack partitions."""

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition, the next offset behind what it holds."""

    def first_offsets(self, since: int) -> Mapping[int, int]:
        """By partition, an offset before which no record is as late as `since`, epoch ms, by the event time of the
        store; partitions without such records are missing."""

    def fetch(self, starts: Mapping[int, int], ends: Mapping[int, int], folder: Path, cache: Path) -> list[Path]:
        """Write the records between some offsets, each once, as Parquet with the columns `topic STRING, partition INT,
        offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP, headers ARRAY<STRUCT<key STRING, value BINARY>>`
        and perhaps others.

        Args:
            starts: The first offsets, by partition.
            ends: The next offsets behind the last ones.
            folder: A folder for the files.
            cache: A folder for what later calls need, too.
        """


def open_reader(output: Output, topic: str) -> RecordReader:
    """Open what an output with a `reader` keeps of a topic."""
    with optional_packages():
        opener: Callable[[Output, str], RecordReader] = resolve_name(output.reader)
    return opener(output, topic)
