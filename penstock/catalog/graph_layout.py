"""Places the graph in columns, from left to right, so that lines are short and cross seldom (after Sugiyama)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from penstock.catalog.graph import Edge, Graph
from penstock.model.declaration import CatalogNode

SWEEPS = 12
# Height of a long edge in a column that it passes; a node's is 1.
PASSING = 0.5

# A node, or the point where an edge passes a column.
Item = CatalogNode | tuple[Edge, int]


@dataclass(frozen=True)
class GraphLayout:
    """Where to draw each node and edge.

    Attributes:
        columns: of nodes, from 0.
        rows: centres of nodes, from 0 downwards, at least 1 apart in a column.
        paths: the points (column, row) of each edge; only the two ends of an edge that closes a cycle.
    """

    columns: Mapping[CatalogNode, int]
    rows: Mapping[CatalogNode, float]
    paths: Mapping[Edge, Sequence[tuple[int, float]]]


def layout_graph(graph: Graph) -> GraphLayout:
    """Where to draw each node and edge."""
    order = _order(graph)
    rank = {node: number for number, node in enumerate(order)}
    forward = [e for e in graph.edges if rank[e.source] < rank[e.target]]
    columns = _columns(graph, order, forward)
    chains: dict[Edge, list[Item]] = {
        e: [e.source, *((e, c) for c in range(columns[e.source] + 1, columns[e.target])), e.target] for e in forward
    }
    stacks: list[list[Item]] = [[] for _ in range(max(columns.values(), default=-1) + 1)]
    for node in order:
        stacks[columns[node]].append(node)
    for edge in sorted(forward, key=lambda e: rank[e.source]):
        for item in chains[edge][1:-1]:
            assert not isinstance(item, CatalogNode)
            stacks[item[1]].append(item)
    rows = _rows(stacks, list(chains.values()))
    at = {item: (c, rows[item]) for c, stack in enumerate(stacks) for item in stack}
    paths = {e: [at[item] for item in chains.get(e, [e.source, e.target])] for e in graph.edges}
    return GraphLayout(columns, {node: rows[node] for node in graph.nodes}, paths)


def _order(graph: Graph) -> list[CatalogNode]:
    """Nodes such that a source stands before its targets, but for one edge of each cycle; neighbours near each
    other."""
    ordered: list[CatalogNode] = []
    visited: set[CatalogNode] = set()

    def visit(node: CatalogNode) -> None:
        visited.add(node)
        for target in reversed(graph.targets[node]):
            if target not in visited:
                visit(target)
        ordered.append(node)

    # What nothing feeds comes first; of a cycle that nothing feeds, a topic.
    for node in sorted(graph.nodes, key=lambda n: (bool(graph.sources[n]), n.kind != "topic")):
        if node not in visited:
            visit(node)
    return ordered[::-1]


def _columns(graph: Graph, order: Sequence[CatalogNode], forward: Sequence[Edge]) -> dict[CatalogNode, int]:
    """Each node right of all that feeds it; what nothing feeds is moved up to what it feeds."""
    columns = dict.fromkeys(order, 0)
    for node in order:
        for edge in forward:
            if edge.source == node:
                columns[edge.target] = max(columns[edge.target], columns[node] + 1)
    for node in order:
        if not graph.sources[node] and (fed := [columns[e.target] for e in forward if e.source == node]):
            columns[node] = min(fed) - 1
    return columns


def _rows(stacks: Sequence[list[Item]], chains: Sequence[Sequence[Item]]) -> dict[Item, float]:
    """Rows near to those of neighbours, by going to and fro over the columns."""
    left: dict[Item, list[Item]] = {item: [] for stack in stacks for item in stack}
    right: dict[Item, list[Item]] = {item: [] for stack in stacks for item in stack}
    for chain in chains:
        for a, b in pairwise(chain):
            right[a].append(b)
            left[b].append(a)
    rows: dict[Item, float] = {item: float(n) for stack in stacks for n, item in enumerate(stack)}
    for sweep in range(SWEEPS):
        beside = right if sweep % 2 else left
        for stack in reversed(stacks) if sweep % 2 else stacks:
            wanted = {i: fmean(rows[other] for other in beside[i]) if beside[i] else rows[i] for i in stack}
            stack.sort(key=wanted.__getitem__)
            rows |= zip(stack, _apart([wanted[i] for i in stack], [_size(i) for i in stack]), strict=True)
    top = min(rows.values(), default=0.0)
    return {item: round(row - top, 3) for item, row in rows.items()}


def _size(item: Item) -> float:
    return 1.0 if isinstance(item, CatalogNode) else PASSING


def _apart(wanted: Sequence[float], sizes: Sequence[float]) -> Iterator[float]:
    """Rows in order, as near to those wanted as their sizes let them (isotonic regression)."""
    offsets = [sum(sizes[:n]) + size / 2 for n, size in enumerate(sizes)]
    pools: list[list[float]] = []
    for row, offset in zip(wanted, offsets, strict=True):
        pools.append([row - offset])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    free = (fmean(pool) for pool in pools for _ in pool)
    return (row + offset for row, offset in zip(free, offsets, strict=True))
