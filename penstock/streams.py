"""What a stream file imports, all from here."""

from penstock.model.archive import Archive
from penstock.model.avro import Avro
from penstock.model.backfill import Backfill, Collection, IcebergTable, RowsQuery
from penstock.model.expectation import Expectation
from penstock.model.fold import Fold
from penstock.model.input import Combiner, Input, Table
from penstock.model.json_schema import JsonSchema
from penstock.model.lazy_spark import F
from penstock.model.mask import Mask
from penstock.model.output import TopicOutput
from penstock.model.output_mode import EmitChanges, EmitFinal, KeyedState, Stateless, StreamJoin, Timers
from penstock.model.panel import Panel, PanelCard, PanelValue
from penstock.model.protobuf import Protobuf
from penstock.model.stream import Stream
from penstock.model.topic import Topic
from penstock.model.view import View

__all__ = [
    "Archive",
    "Avro",
    "Backfill",
    "Collection",
    "Combiner",
    "EmitChanges",
    "EmitFinal",
    "Expectation",
    "F",
    "Fold",
    "IcebergTable",
    "Input",
    "JsonSchema",
    "KeyedState",
    "Mask",
    "Panel",
    "PanelCard",
    "PanelValue",
    "Protobuf",
    "RowsQuery",
    "Stateless",
    "Stream",
    "StreamJoin",
    "Table",
    "Timers",
    "Topic",
    "TopicOutput",
    "View",
]  # fmt: skip
