"""What a stream file imports, all from here."""

from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill, Collection, Rows
from penstock.model.fold import Fold
from penstock.model.input import Combiner, Input, Table
from penstock.model.lazy_spark import F
from penstock.model.output import TopicOutput
from penstock.model.output_mode import Each, Final, Folded, Joined, Timed, Updates
from penstock.model.stream import Stream
from penstock.model.topic import Topic
from penstock.model.view import View

__all__ = [
    "Archive", "Backfill", "Collection", "Combiner", "Each", "F", "Final", "Fold", "Folded", "Input", "Joined", "Rows",
    "Stream", "Table", "Timed", "Topic", "TopicOutput", "Updates", "View",
]  # fmt: skip

MOVED = {
    "InfluxDB": "from penstock.sinks.influxdb.config import InfluxDB, or a statement in sql/sinks/",
    "declare": "from penstock.streams import Stream, Topic, ...",
    "runner": "import penstock.engine.query.stream_run",
    "beats": "import penstock.supervision.event_clock.heartbeats",
    "supervise": "import penstock.supervision.supervisor",
}


if not TYPE_CHECKING:  # to a type checker what is not above is not there

    def __getattr__(name: str) -> Any:
        if name in MOVED:
            raise DeclarationError(f"penstock.streams.{name} has moved", hint=MOVED[name])
        raise AttributeError(f"module 'penstock.streams' has no attribute {name!r}")
