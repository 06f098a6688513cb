"""Streams: declaration, runner, supervision. A stream file imports all it needs from here."""

from typing import TYPE_CHECKING

from penstock.streams.declare import Final, Input, Stream, Topic, Updates

if TYPE_CHECKING:
    from pyspark.sql import functions as F  # noqa: N812
else:
    from penstock.streams.declare import F

__all__ = ["F", "Final", "Input", "Stream", "Topic", "Updates"]
