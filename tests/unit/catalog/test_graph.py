"""The graph of what is declared: its edges, and how it is drawn."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import combinations, pairwise
from typing import get_args

import pytest

from penstock.catalog import Catalog, load
from penstock.catalog.diagram import mermaid, text
from penstock.catalog.graph import Edge, Graph, graph
from penstock.catalog.graph_layout import layout_graph
from penstock.catalog.listing import catalog_rows, document, format_duration
from penstock.model.declaration import CatalogNode, Kind
from penstock.model.output_mode import millis
from tests.chaos.projects import other_project
from tests.support.declared_project import DECLARED


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    with other_project(DECLARED, {}):
        return load()


def topics(*names: str) -> list[CatalogNode]:
    return [CatalogNode("topic", name) for name in names]


def edge(pair: str) -> Edge:
    source, target = topics(*pair)
    return Edge(source, target)


def made(*pairs: str) -> Graph:
    """A graph of topics: `ab` leads from a to b."""
    edges = tuple(edge(pair) for pair in sorted(pairs))
    return Graph(tuple(sorted({node for e in edges for node in (e.source, e.target)})), edges)


def test_edges_lead_from_what_is_read_to_what_is_written(catalog: Catalog) -> None:
    edges = graph(catalog).edges
    orders, minutes = topics("orders", "order-minutes")
    stream, pattern = CatalogNode("stream", "order-minutes"), CatalogNode("pattern", "order.*")
    archive, backfill = CatalogNode("archive", "order-archive"), CatalogNode("backfill", "order-replay")
    assert {
        Edge(orders, stream), Edge(stream, minutes),
        Edge(CatalogNode("table", "till:towns"), CatalogNode("capture", "shops")),
        Edge(CatalogNode("sink", "order-points"), CatalogNode("store", "influxdb:shop.orders")), Edge(orders, archive),
        Edge(archive, backfill), Edge(backfill, orders), Edge(CatalogNode("backfill", "first-year"), stream),
        Edge(minutes, CatalogNode("view", "minutes-by-shop")), Edge(pattern, CatalogNode("stream", "order-counts")),
    } <= set(edges)  # fmt: skip
    assert len(set(edges)) == len(edges)


def test_a_pattern_shows_which_declared_topics_it_matches(catalog: Catalog) -> None:
    drawn = graph(catalog)
    matched = [e.source.name for e in drawn.edges if e.matches]
    assert matched == ["order-minutes", "order-points-dead-letter", "orders", "orders-dead-letter"]
    assert not [node for node in drawn.nodes if node.name.startswith("penstock.")]


def test_around_a_name_is_what_feeds_it_and_what_it_feeds() -> None:
    drawn = made("ab", "bc", "cd", "xc", "bz", "pq")
    near = drawn.around("c")
    assert [node.name for node in near.nodes] == ["a", "b", "c", "d", "x"]
    assert [e.source.name + e.target.name for e in near.edges] == ["ab", "bc", "cd", "xc"]
    assert drawn.around("nobody").nodes == ()


def test_around_a_name_leaves_out_the_ways_that_go_past_it() -> None:
    assert edge("ac") not in made("ab", "bc", "ac").around("b").edges


def test_the_tree_goes_from_sources_to_sinks_and_unfolds_each_node_once() -> None:
    assert text(made("ab", "bc", "ad", "db")).splitlines() == [
        "a (topic)",
        "  b (topic)",
        "    c (topic)",
        "  d (topic)",
        "    b (topic), see above",
    ]


def test_the_tree_has_an_end_where_the_graph_has_none() -> None:
    assert text(made("ab", "bc", "ca", "dd")).splitlines() == [
        "a (topic)",
        "  b (topic)",
        "    c (topic)",
        "      a (topic), see above",
        "d (topic)",
        "  d (topic), see above",
    ]


def test_the_tree_of_a_project_names_everything(catalog: Catalog) -> None:
    drawn = graph(catalog)
    lines = text(drawn).splitlines()
    assert {f"{node.name} ({node.kind})" for node in drawn.nodes} == {
        line.strip().removesuffix(", see above") for line in lines
    }
    assert lines[lines.index("  shops (capture)") + 1] == "    shops (topic)"


HARD = [
    "end",
    'a "b" `c`',
    "#35; #x;",
    "<b>&amp;",
    "a|b[c](d){e}",
    "%% x",
    "a~b^c",
    "-->",
    "line\nline",
    "ö 中",
    "subgraph",
    ";",
]


def test_mermaid_is_a_flowchart_whatever_the_names_hold() -> None:
    nodes = [CatalogNode(kind, name) for kind, name in zip(get_args(Kind), HARD, strict=True)]
    edges = [Edge(a, b, matches=b.kind == "pattern") for a, b in pairwise(nodes)]
    first, *lines = mermaid(Graph(tuple(nodes), tuple(edges))).splitlines()
    assert first == "flowchart LR"
    drawn, drawn_edges = lines[: len(nodes)], lines[len(nodes) :]
    for n, (line, node) in enumerate(zip(drawn, nodes, strict=True)):
        label = re.fullmatch(rf'  n{n}[(\[{{/]+"([^"]*)<br/>{node.kind}"[)\]}}/]+', line)
        assert label, line
        assert re.fullmatch(r"([\w .:/-]|#[0-9]+;)*", label[1])
        assert re.sub(r"#([0-9]+);", lambda m: chr(int(m[1])), label[1]) == node.name
    assert drawn_edges == [f"  n{n} {'-.->' if n == 0 else '-->'} n{n + 1}" for n in range(len(edges))]


def test_columns_grow_along_each_edge_but_those_that_lead_back(catalog: Catalog) -> None:
    rings = {graph(catalog): 1, made("ab", "bc", "ca", "cd"): 1, made("ab", "bc", "cd", "ad", "xd"): 0, made("aa"): 1}
    for drawn, count in rings.items():
        layout = layout_graph(drawn)
        back = [e for e in drawn.edges if layout.columns[e.source] >= layout.columns[e.target]]
        assert len(back) == count
        for one, way in layout.paths.items():
            assert way[0] == (layout.columns[one.source], layout.rows[one.source])
            assert way[-1] == (layout.columns[one.target], layout.rows[one.target])
            if one not in back:
                assert [c for c, _ in way] == list(range(way[0][0], way[-1][0] + 1))
        assert min(layout.columns.values()) == 0


def test_no_two_things_are_drawn_in_one_place(catalog: Catalog) -> None:
    layout = layout_graph(graph(catalog))
    passing = [point for way in layout.paths.values() for point in way[1:-1]]
    assert passing
    for a, b in combinations(layout.columns, 2):
        assert layout.columns[a] != layout.columns[b] or abs(layout.rows[a] - layout.rows[b]) >= 0.999
    for node, column in layout.columns.items():
        assert all(c != column or abs(row - layout.rows[node]) >= 0.749 for c, row in passing)
    assert min(layout.rows.values()) >= 0


def test_lines_do_not_cross_that_need_not() -> None:
    """Three paths side by side, declared crosswise, and one that passes a column."""
    layout = layout_graph(made("ax", "by", "cw", "xm", "yl", "wk", "ak"))
    ends = [(way[n], way[n + 1]) for way in layout.paths.values() for n in range(len(way) - 1)]
    crossings = [
        (p, q)
        for p, q in combinations(ends, 2)
        if p[0][0] == q[0][0] and (p[0][1] - q[0][1]) * (p[1][1] - q[1][1]) < -1e-9
    ]
    assert crossings == []


def test_an_empty_graph_can_be_drawn() -> None:
    empty = Graph((), ())
    assert (text(empty), mermaid(empty), layout_graph(empty).paths) == ("", "flowchart LR", {})
    assert document(Catalog({}, {}))["graph"] == {"nodes": [], "edges": []}


def test_rows_say_what_runs_and_what_is_promised(catalog: Catalog) -> None:
    found = {row.name: row for row in catalog_rows(catalog)}
    assert [row.kind for row in found.values()] == sorted(
        (row.kind for row in found.values()),
        key=["capture", "stream", "sink", "view", "panel", "archive", "backfill"].index,
    )
    assert {name for name, row in found.items() if row.runs} == {
        "shops", "order-minutes", "order-points", "order-counts", "order-replay",
        "minutes-by-shop", "shop-names", "shop-totals",
    }  # fmt: skip
    assert found["order-minutes"].output_mode == "EmitFinal: window 1 min, grace 10 s"
    assert (found["order-points"].output_mode, found["shops"].output_mode) == (
        "Stateless",
        "polled every 1 s, compared every 1 d",
    )
    assert found["order-archive"].output_mode == "Stateless"
    assert [found[name].behind_ms for name in ("order-minutes", "order-points", "shops")] == [10_000, 10_000, 0]


def test_the_delays_of_watermarks_add_up() -> None:
    shipped = load()
    own = millis(shipped.streams["metric-summaries"].output_mode.watermark_delay)
    found = {row.name: row.behind_ms for row in catalog_rows(shipped)}
    assert 0 < found["metric-bundles"] == found["metric-summaries"] - own


@pytest.mark.parametrize(
    ("length", "said"),
    [(0, "0 s"), (0.25, "250 ms"), (1.5, "1500 ms"), (60, "1 min"), (90, "90 s"), (7200, "2 h"), (86400, "1 d")],
)
def test_lengths_of_time_are_said_in_whole_units(length: float, said: str) -> None:
    assert format_duration(timedelta(seconds=length)) == said
    assert millis(timedelta(seconds=length)) == length * 1000
