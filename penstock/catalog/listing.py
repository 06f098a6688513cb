"""The catalog as rows, for the command, the page and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.catalog.catalog import Catalog
from penstock.catalog.graph import Graph, graph
from penstock.catalog.graph_layout import layout_graph
from penstock.model.archive import Archive
from penstock.model.declaration import CatalogNode, Declared, Kind
from penstock.model.mask import Mask
from penstock.model.output_mode import OutputMode, millis
from penstock.model.panel import Panel, PanelValue
from penstock.model.stream import Stream
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.model.capture import Capture

UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
NOT_RUN = "declared only: it is disabled, or the address of its store is not configured"


@dataclass(frozen=True)
class CatalogRow:
    """One declaration.

    Attributes:
        kind: of the declaration.
        name: unique over all kinds.
        app: whose driver runs it, None if it has none.
        reads: what it reads.
        writes: what it writes.
        output_mode: in words; of a capture how often it polls and reconciles.
        runs: whether anything runs it.
        location: file and line, relative to the project if it is in it.
        description: of a backfill.
        behind_ms: delay of its watermark behind the newest records, with that of the streams that write what it reads.
        masks: of its outputs, as the clause MASK writes them.
        table: of an archive, the name of its Iceberg table.
    """

    kind: Kind
    name: str
    app: str | None
    reads: Sequence[CatalogNode]
    writes: Sequence[CatalogNode]
    output_mode: str
    runs: bool
    location: str
    description: str = ""
    behind_ms: int = 0
    masks: Sequence[str] = ()
    table: str = ""


def catalog_rows(catalog: Catalog) -> list[CatalogRow]:
    """All declarations, sorted by kind and name."""
    output_modes = {
        name: described_mode(stream.output_mode) for name, stream in {**catalog.streams, **catalog.disabled}.items()
    }
    output_modes |= {name: _captured(capture) for name, capture in catalog.captures.items()}
    delays = watermark_delays(catalog)
    descriptions = {name: backfill.description for name, backfill in catalog.backfills.items()}
    masks = {name: [mask.text for mask in declared_masks(one)] for name, one in catalog.declared.items()}
    declarations = sorted(catalog.declared.values(), key=lambda declared: (_rank(declared), declared.name))
    runnable = catalog.supervised.keys() | {name for name, b in catalog.backfills.items() if b.runnable}
    runnable |= {served_view.view.name for served_view in catalog.served_views.values()}
    runnable |= {name for name, panel in catalog.panels.items() if all(view.name in runnable for view in panel.views)}
    return [
        CatalogRow(
            d.kind, d.name, d.app, d.reads, d.writes, output_modes.get(d.name, ""), d.name in runnable,
            d.location.removeprefix(f"{settings().project}/"), descriptions.get(d.name, ""), delays.get(d.name, 0),
            masks[d.name], d.table_name if isinstance(d, Archive) else "",
        )
        for d in declarations
    ]  # fmt: skip


def watermark_delays(catalog: Catalog) -> dict[str, int]:
    """How far the watermark of each stream is behind by declaration, in ms.

    The rows of a stream move the watermark of their readers no further than its own, so delays add up.
    """
    writers: dict[CatalogNode, list[str]] = defaultdict(list)
    for name in catalog.streams:
        for node in catalog.declared[name].writes:
            writers[node].append(name)

    known: dict[str, int] = {}

    def delay(name: str) -> int:
        if name not in known:
            own = known[name] = millis(catalog.streams[name].output_mode.watermark_delay)
            before = [one for node in catalog.declared[name].reads for one in writers[node] if one != name]
            known[name] = own + max(map(delay, before), default=0)
        return known[name]

    return {name: delay(name) for name in catalog.streams}


def declared_masks(declared: Declared) -> list[Mask]:
    """The masks of an archive, or of the outputs of a stream or sink."""
    outputs = declared.outputs.values() if isinstance(declared, Stream) else (declared,)
    return [mask for one in outputs for mask in getattr(one, "mask", ())]


def json_rows(rows: Sequence[CatalogRow]) -> list[dict[str, Any]]:
    """Rows as JSON objects."""
    return [
        {**asdict(row), "reads": [p._asdict() for p in row.reads], "writes": [p._asdict() for p in row.writes]}
        for row in rows
    ]


def document(catalog: Catalog) -> dict[str, Any]:
    """Rows, panels, and the graph with its layout; edges refer to nodes by index."""
    return {
        "declared": json_rows(catalog_rows(catalog)), "not_run": NOT_RUN, "graph": _drawn(graph(catalog)),
        "panels": [json_panel(panel) for panel in catalog.panels.values()],
    }  # fmt: skip


def json_panel(panel: Panel) -> dict[str, Any]:
    """A panel as a JSON object, with its views by their names."""
    cards = [
        {
            **vars(card),
            "view": card.view.name,
            "values": [_json_value(value) for value in card.values],
            "columns": [_json_value(value) for value in card.columns],
        }
        for card in panel.cards
    ]
    attributes = {name: value for name, value in vars(panel).items() if name != "location"}
    return {**attributes, "view": panel.view.name, "dimensions": dict(panel.dimensions), "cards": cards}


def _json_value(value: PanelValue) -> dict[str, Any]:
    return {**vars(value), "fields": list(value.field_names)}


def _drawn(drawn: Graph) -> dict[str, Any]:
    layout, number = layout_graph(drawn), {node: n for n, node in enumerate(drawn.nodes)}
    return {
        "nodes": [{**n._asdict(), "column": layout.columns[n], "row": layout.rows[n]} for n in drawn.nodes],
        "edges": [
            {"source": number[e.source], "target": number[e.target], "matches": e.matches, "path": layout.paths[e]}
            for e in drawn.edges
        ],
    }


def _rank(declaration: Declared) -> int:
    return ("capture", "stream", "sink", "view", "panel", "archive", "backfill").index(declaration.kind)


def described_mode(mode: OutputMode) -> str:
    """E.g. `EmitFinal: window 5 min, grace 1 min`."""
    chosen = [f.name for f in fields(mode) if getattr(mode, f.name) != f.default]
    settings = ", ".join(f"{name.replace('_', ' ')} {format_duration(getattr(mode, name))}" for name in chosen)
    return type(mode).__name__ + (f": {settings}" if settings else "")


def _captured(capture: Capture) -> str:
    compared = f", compared every {format_duration(capture.reconcile)}" if capture.reconcile else ""
    return f"polled every {format_duration(capture.every)}{compared}"


def format_duration(duration: timedelta) -> str:
    """A duration in the largest unit that it is a whole number of: `90 s`, `2 h`."""
    seconds = duration.total_seconds()
    for unit, size in UNITS.items():
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
