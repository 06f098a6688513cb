"""Streams: declaration, runner, supervision. A stream file imports all it needs from here."""

from typing import TYPE_CHECKING

from penstock.streams.declare import Each, Final, InfluxDB, Input, Stream, Topic, Updates

if TYPE_CHECKING:
    from pyspark.sql import functions as F  # noqa: N812
else:
    from penstock.streams.declare import F

__all__ = ["Each", "F", "Final", "InfluxDB", "Input", "Stream", "Topic", "Updates"]
