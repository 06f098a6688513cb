"""The graph of declarations and what they read and write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from penstock.catalog.catalog import Catalog
from penstock.model.declaration import CatalogNode


class Edge(NamedTuple):
    """A flow of records. matches: from a declared topic to a pattern that matches it."""

    source: CatalogNode
    target: CatalogNode
    matches: bool = False


@dataclass(frozen=True)
class Graph:
    """Nodes and edges, each once and in order. A topic that a stream writes may have the stream's name: the kind tells
    them apart."""

    nodes: tuple[CatalogNode, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def targets(self) -> dict[CatalogNode, list[CatalogNode]]:
        """What each node feeds."""
        return {node: [e.target for e in self.edges if e.source == node] for node in self.nodes}

    @cached_property
    def sources(self) -> dict[CatalogNode, list[CatalogNode]]:
        """What feeds each node."""
        return {node: [e.source for e in self.edges if e.target == node] for node in self.nodes}

    def around(self, name: str) -> Graph:
        """The nodes of a name with all that is upstream and downstream of them; empty if there is no such node."""
        named = [node for node in self.nodes if node.name == name]
        up, down = (set(_reachable(named, step)) for step in (self.sources.__getitem__, self.targets.__getitem__))
        edges = tuple(e for e in self.edges if {e.source, e.target} <= up or {e.source, e.target} <= down)
        return Graph(tuple(node for node in self.nodes if node in up | down), edges)


def _reachable(start: Iterable[CatalogNode], step: Callable[[CatalogNode], list[CatalogNode]]) -> Iterator[CatalogNode]:
    """The nodes that `step` reaches, those it starts from included."""
    waiting = list(start)
    visited = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        unvisited = [other for other in step(node) if other not in visited]
        visited.update(unvisited)
        waiting += unvisited


def graph(catalog: Catalog) -> Graph:
    """The graph of all that is declared. Topics that only Penstock itself reads are not in it."""
    edges: dict[Edge, None] = {}
    nodes: dict[CatalogNode, None] = {}
    for one in catalog.declared.values():
        node = CatalogNode(one.kind, one.name)
        nodes[node] = None
        edges |= dict.fromkeys(Edge(other, node) for other in one.reads)
        edges |= dict.fromkeys(Edge(node, other) for other in one.writes)
    nodes |= dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
    for pattern in [node for node in nodes if node.kind == "pattern"]:
        matched = (n for n in nodes if n.kind == "topic" and re.fullmatch(pattern.name, n.name))
        edges |= dict.fromkeys(Edge(topic, pattern, matches=True) for topic in matched)
    return Graph(tuple(sorted(nodes)), tuple(sorted(edges)))
