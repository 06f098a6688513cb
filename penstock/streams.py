"""What a stream file imports, all from here."""

from typing import TYPE_CHECKING, Any

from penstock.declare.archive import Archive
from penstock.declare.backfill import Backfill, Collection, Rows
from penstock.declare.fold import Fold
from penstock.declare.inputs import Combiner, Input, Table
from penstock.declare.lazy import F
from penstock.declare.outputs import TopicOutput
from penstock.declare.promises import Each, Final, Folded, Joined, Timed, Updates
from penstock.declare.stream import Stream
from penstock.declare.topic import Topic
from penstock.declare.view import View
from penstock.errors import DeclarationError

__all__ = [
    "Archive", "Backfill", "Collection", "Combiner", "Each", "F", "Final", "Fold", "Folded", "Input", "Joined", "Rows",
    "Stream", "Table", "Timed", "Topic", "TopicOutput", "Updates", "View",
]  # fmt: skip

MOVED = {
    "InfluxDB": "from penstock.sinks.influxdb import InfluxDB, or a statement in sql/sinks/",
    "declare": "from penstock.streams import Stream, Topic, ...",
    "runner": "import penstock.engine.run",
    "beats": "import penstock.supervision.heartbeats",
    "supervise": "import penstock.supervision.supervisor",
}


if not TYPE_CHECKING:  # to a type checker what is not above is not there

    def __getattr__(name: str) -> Any:
        if name in MOVED:
            raise DeclarationError(f"penstock.streams.{name} has moved", fix=MOVED[name])
        raise AttributeError(f"module 'penstock.streams' has no attribute {name!r}")
