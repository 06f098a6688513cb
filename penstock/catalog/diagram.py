"""The graph as text and as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.catalog.graph import Graph
from penstock.model.declaration import CatalogNode, Kind

SHAPES: Mapping[Kind, tuple[str, str]] = {
    "topic": ("([", "])"),
    "pattern": ("{{", "}}"),
    "table": ("[(", ")]"),
    "store": ("[(", ")]"),
    "source": ("[(", ")]"),
    "view": ("[/", "/]"),
    "panel": ("[/", "/]"),
    "backfill": ("[[", "]]"),
}
BOX = ("[", "]")


def text(graph: Graph) -> str:
    """A tree from sources to sinks, indented by two spaces a level. Each node is unfolded once."""
    lines: list[str] = []
    shown: set[CatalogNode] = set()
    roots = [node for node in graph.nodes if not graph.sources[node]]
    # A cycle that nothing feeds begins with a topic.
    for root in (*roots, *sorted(graph.nodes, key=lambda node: node.kind != "topic")):
        if root not in shown:
            lines += _tree(graph, root, 0, shown)
    return "\n".join(lines)


def _tree(graph: Graph, node: CatalogNode, depth: int, shown: set[CatalogNode]) -> Iterator[str]:
    is_repeated = node in shown and bool(graph.targets[node])
    yield f"{'  ' * depth}{node.name} ({node.kind})" + (", see above" if is_repeated else "")
    if node in shown:
        return
    shown.add(node)
    for target in graph.targets[node]:
        yield from _tree(graph, target, depth + 1, shown)


def mermaid(graph: Graph) -> str:
    """A flowchart from left to right; a dotted line leads from a topic to a pattern that matches it."""
    ids = {node: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node, name in ids.items():
        left, right = SHAPES.get(node.kind, BOX)
        lines.append(f'  {name}{left}"{_escaped(node.name)}<br/>{node.kind}"{right}')
    lines += [f"  {ids[e.source]} {'-.->' if e.matches else '-->'} {ids[e.target]}" for e in graph.edges]
    return "\n".join(lines)


def _escaped(name: str) -> str:
    """A name in a quoted label: what Mermaid or HTML could take for their own is written by its number."""
    return "".join(c if c.isalnum() or c in " -._:/" else f"#{ord(c)};" for c in name)
