"""Panels: their declaration, its checks, and the panels of the shipped systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest

from penstock.catalog import build, load
from penstock.catalog.listing import catalog_rows, json_panel
from penstock.errors import DeclarationError
from penstock.model.declaration import CatalogNode
from penstock.model.panel import Format
from penstock.settings import PROJECT
from penstock.streams import Panel, PanelCard, PanelValue, Topic, View

DEVICES = View(
    "devices",
    Topic("devices", compacted=True),
    schema="site STRING, on BOOLEAN, since BIGINT, tags MAP<STRING,STRING>, parts ARRAY<STRUCT<id: INT, made: BIGINT>>",
    query_by=("site", "on", "since", "tags"),
)
FAULTS = View(
    "faults", Topic("faults", compacted=True), schema="site STRING, code INT, at BIGINT", query_by=("site", "at")
)
SITE, CODE = PanelValue("Site", "site"), PanelValue("Code", ("code", "at"))
DEVICE = PanelCard("Device", DEVICES, values=(SITE, PanelValue("State", "on", "status")))
PARTS = PanelCard(
    "Parts", DEVICES, elements="parts", columns=(PanelValue("Part", "id"), PanelValue("Made", "made", "time"))
)
SITE_FAULTS = PanelCard("Faults", FAULTS, columns=(CODE,), match="site", order="at")
PANEL = Panel(
    "device-panel", "Devices", DEVICES, {"site": "Site"}, status="on", since="since", cards=(DEVICE, PARTS, SITE_FAULTS)
)


def test_a_panel_reads_each_of_its_views_once() -> None:
    assert PANEL.reads == [CatalogNode("view", "devices"), CatalogNode("view", "faults")]
    assert (PANEL.kind, PANEL.app, PANEL.writes) == ("panel", None, ())


def test_a_panel_is_listed_and_written_as_json() -> None:
    catalog = build([PANEL, DEVICES, FAULTS])
    assert catalog.panels == {"device-panel": PANEL}
    [row] = [row for row in catalog_rows(catalog) if row.kind == "panel"]
    assert (row.name, row.runs) == ("device-panel", True)
    panel = json_panel(PANEL)
    assert (panel["view"], panel["dimensions"], panel["since"]) == ("devices", {"site": "Site"}, "since")
    assert [card["view"] for card in panel["cards"]] == ["devices", "devices", "faults"]
    assert panel["cards"][2]["columns"] == [{"title": "Code", "fields": ["code", "at"], "format": "text"}]


def test_each_view_of_a_panel_must_be_declared() -> None:
    with pytest.raises(
        DeclarationError, match="panel device-panel names a view that is not in the catalog; got: faults"
    ):
        build([PANEL, DEVICES])


def card(**attributes: object) -> Callable[[], object]:
    return lambda: replace(PANEL, cards=(replace(DEVICE, **attributes),))  # type: ignore[arg-type]


def value(fields: str, format_: str = "text") -> Callable[[], object]:
    return card(values=(PanelValue("V", fields, format_),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: replace(PANEL, name="A panel"), "the name of panel 'A panel' is not usable"),
        (lambda: replace(PANEL, view="devices"), "view is no View; got: devices"),  # type: ignore[arg-type]
        (lambda: replace(PANEL, dimensions={}), "there is no dimension; hint: name a field"),
        (
            lambda: replace(PANEL, dimensions={"region": "Region"}),
            "dimensions: this is no field of query_by of view devices; got: region; hint: take one of: site, on, since",
        ),
        (lambda: replace(PANEL, dimensions={"tags": "Tags"}), "the field has another type; got: tags map"),
        (lambda: replace(PANEL, status="site"), "status: the field has another type; got: site string; hint: take a"),
        (lambda: replace(PANEL, since="on"), "since: the field has another type; got: on boolean; hint: take a BIGINT"),
        (lambda: replace(PANEL, status="", cards=()), "since is given without status; got: since"),
        (lambda: replace(PANEL, status="", since=""), "the format status needs the panel's status; got: State"),
        (card(values=()), "card 'Device' shows nothing"),
        (card(columns=(SITE,)), "has only one of elements and columns"),
        (card(elements="tags", columns=(SITE,)), "elements is no ARRAY<STRUCT<...>>; got: tags map<string,string>"),
        (card(elements="none", columns=(SITE,)), "elements: devices has no such field; got: none"),
        (card(elements="parts", columns=(SITE,)), "'Site': parts has no such field; got: site; hint: take one of: id"),
        (card(order="since"), "has an order without match; got: since"),
        (card(match="site"), "with match is not a table of rows"),
        (card(values=(), columns=(SITE,), match="tags"), "match: the field has another type"),
        (card(values=(), columns=(SITE,), match="site", order="x"), "order: this is no field of query_by"),
        (card(view=FAULTS, values=(), columns=(CODE,), match="at"), "match: devices has no such field; got: at"),
        (value("colour"), "'V': devices has no such field; got: colour"),
        (value("parts"), "the format text cannot show this field; got: parts array"),
        (value("site", "time"), "the format time cannot show this field; got: site string"),
        (value("site", "money"), "unknown format; got: money; hint: take one of: text, time, age, seconds, status"),
    ],
)  # fmt: skip
def test_wrong_declarations_are_refused_with_the_cause(declare: Callable[[], object], message: str) -> None:
    with pytest.raises(DeclarationError) as e:
        declare()
    assert message in str(e.value)


def test_the_page_has_each_format() -> None:
    text = (PROJECT / "penstock" / "airflow" / "static" / "views" / "views.js").read_text()
    formats = text.partition("const FORMATS = {")[2].partition("\n};")[0]
    assert [line.split(":")[0].strip() for line in formats.strip().splitlines()] == list(get_args(Format))


def test_the_shipped_panel_of_the_agents_is_declared() -> None:
    panel = load().panels["fleet"]
    assert panel.location.startswith(str(PROJECT / "jobs" / "agents"))
    assert [view.name for view in panel.views] == ["agents", "agents", "assigned", "last-alerts"]
