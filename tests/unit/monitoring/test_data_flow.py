"""What feeds what, by the graph of the declarations; and declarations that are read in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.monitoring.dashboard.data_flow import DataFlow
from penstock.monitoring.dashboard.declarations import Declarations, KnownDeclarations
from tests.support.wait import wait_until

EDGES = [
    ("table shops", "capture shops"), ("capture shops", "topic shops"), ("topic shops", "stream orders"),
    ("topic clicks", "stream orders"), ("stream orders", "topic orders"), ("topic orders", "sink search"),
    ("topic orders", "archive kept"), ("topic orders", "pattern or.*"), ("pattern or.*", "stream quality"),
    ("stream quality", "topic quality"), ("topic quality", "view quality"), ("view quality", "panel fleet"),
    ("topic quality", "stream orders"), ("sink search", "store elasticsearch:orders"),
]  # fmt: skip


def flow() -> DataFlow:
    names = sorted({end for edge in EDGES for end in edge})
    nodes = [dict(zip(("kind", "name"), name.split(" "), strict=True)) for name in names]
    return DataFlow.of(
        {"nodes": nodes, "edges": [{"source": names.index(a), "target": names.index(b)} for a, b in EDGES]}
    )


def test_everything_downstream_is_found_once_the_nearest_first() -> None:
    found = flow().downstream([("capture", "shops")])
    assert found[0] == "orders"
    assert (set(found[1:3]), found[3:]) == ({"search", "kept"}, ["quality", "fleet"])
    assert flow().downstream([("stream", "quality")]) == ["quality", "orders", "fleet", "search", "kept"]
    assert flow().downstream([("sink", "search"), ("stream", "none")]) == []


def test_neighbours_are_behind_a_topic_or_are_the_place_itself() -> None:
    reads = [tuple(one) for one in flow().reads_from(("stream", "orders"))]
    assert set(reads) == {
        ("capture", "shops", "shops"),
        ("topic", "clicks", "clicks"),
        ("stream", "quality", "quality"),
    }
    readers = {tuple(one) for one in flow().read_by(("stream", "orders"))}
    assert readers == {("sink", "search", "orders"), ("archive", "kept", "orders"), ("stream", "quality", "orders")}
    assert [tuple(one) for one in flow().reads_from(("stream", "quality"))] == [("stream", "orders", "orders")]
    assert [tuple(one) for one in flow().read_by(("view", "quality"))] == [("panel", "fleet", "")]
    store = "elasticsearch:orders"
    assert [tuple(one) for one in flow().read_by(("sink", "search"))] == [("store", store, store)]
    assert [tuple(one) for one in flow().reads_from(("capture", "shops"))] == [("table", "shops", "shops")]


class Reader:
    """Reads declarations when it may."""

    def __init__(self) -> None:
        self.may_end = Event()
        self.read: list[str] = []

    def __call__(self, spec: str) -> Declarations:
        self.read.append(spec)
        assert self.may_end.wait(30)
        if spec == "wrong":
            raise DeclarationError("wrong")
        return Declarations({spec: {"name": spec, "kind": "stream"}}, {}, flow())


@pytest.fixture
def reader() -> Iterator[Reader]:
    one = Reader()
    yield one
    one.may_end.set()


def test_nobody_waits_for_declarations(reader: Reader) -> None:
    known = KnownDeclarations(reader)
    assert known.newest("a") is None
    assert known.newest("a") is None
    reader.may_end.set()
    first: Any = wait_until(lambda: known.newest("a"), 30, every=0.01)
    assert (list(first.rows), reader.read) == (["a"], ["a"])
    assert known.newest("wrong") is first, "what is known stays until there is something newer"
    wait_until(lambda: known.newest("b") is not first, 30, every=0.01)
    assert reader.read == ["a", "wrong", "b"]


def test_wrong_declarations_are_read_again_after_a_while(reader: Reader) -> None:
    reader.may_end.set()
    known = KnownDeclarations(reader, retry=0.0)
    wait_until(lambda: known.newest("wrong") is not None or len(reader.read) > 1, 30, every=0.01)
    patient = KnownDeclarations(other := Reader())
    other.may_end.set()
    patient.newest("wrong")
    wait_until(lambda: patient._failed_at, 30, every=0.01)
    assert (patient.newest("wrong"), other.read) == (None, ["wrong"])
