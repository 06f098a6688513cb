"""What feeds what, by the graph of the declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# What records lie in. All other nodes of the graph are declarations.
STORAGE_KINDS = frozenset(("topic", "pattern", "table", "store", "source"))
# Names that are kept of those that are reached.
REACHED = 7


class Neighbour(NamedTuple):
    """What feeds a declaration, or what it feeds: another declaration, or a place that nothing declared is behind.

    Attributes:
        kind: Of the declaration, or `topic`, `table`, `store` ...
        through: The topic between both; the name of the place itself if there is nothing behind it.
    """

    kind: str
    name: str
    through: str


class Reached(NamedTuple):
    """The nearest declarations that are reached, and how many there are."""

    names: list[str]
    total: int


Node = tuple[str, str]


@dataclass(frozen=True)
class DataFlow:
    """The graph of the declarations.

    Attributes:
        targets: By kind and name, what a node feeds.
        sources: What feeds a node.
    """

    targets: Mapping[Node, list[Node]]
    sources: Mapping[Node, list[Node]]
    _reached: dict[tuple[Node, ...], Reached] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, graph: Mapping[str, Any]) -> DataFlow:
        """The graph of `penstock.catalog.listing.document`."""
        nodes = [(node["kind"], node["name"]) for node in graph["nodes"]]
        targets: dict[Node, list[Node]] = {node: [] for node in nodes}
        sources: dict[Node, list[Node]] = {node: [] for node in nodes}
        for edge in graph["edges"]:
            source, target = nodes[edge["source"]], nodes[edge["target"]]
            targets[source].append(target)
            sources[target].append(source)
        return cls(targets, sources)

    def reached(self, first: Sequence[Node]) -> Reached:
        """What reads the output of some declarations, see `downstream`; found once, as a graph may be large."""
        key = tuple(first)
        if key not in self._reached:
            names = self.downstream(first)
            self._reached[key] = Reached(names[:REACHED], len(names))
        return self._reached[key]

    def downstream(self, first: Iterable[Node]) -> list[str]:
        """Names of the declarations that read the output of some, directly or through others, the nearest first."""
        waiting = list(first)
        reached = set(waiting)
        for node in waiting:
            new = dict.fromkeys(target for target in self.targets.get(node, ()) if target not in reached)
            reached.update(new)
            waiting += new
        begun = set(first)
        return list(
            dict.fromkeys(name for kind, name in waiting if kind not in STORAGE_KINDS and (kind, name) not in begun)
        )

    def reads_from(self, node: Node) -> list[Neighbour]:
        """What feeds a declaration."""
        return _neighbours(node, self.sources)

    def read_by(self, node: Node) -> list[Neighbour]:
        """What a declaration feeds."""
        return _neighbours(node, self.targets)


def _neighbours(node: Node, step: Mapping[Node, list[Node]]) -> list[Neighbour]:
    neighbours: dict[Neighbour, None] = {}
    for place in step.get(node, ()):
        if place[0] not in STORAGE_KINDS:
            neighbours[Neighbour(*place, "")] = None
            continue
        # A pattern lies between a topic and what reads it.
        beyond = [(near, place[1]) for near in step.get(place, ())]
        matched = [near for near, _ in beyond if near[0] in STORAGE_KINDS]
        beyond += [(far, near[1] if near[0] == "topic" else place[1]) for near in matched for far in step.get(near, ())]
        declared = [Neighbour(*far, topic) for far, topic in beyond if far[0] not in STORAGE_KINDS and far != node]
        neighbours |= dict.fromkeys(declared or [Neighbour(*place, place[1])])
    return list(neighbours)
