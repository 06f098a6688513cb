"""`penstock catalog` over a project with a declaration of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.catalog import Catalog, load
from penstock.catalog.listing import NOT_RUN
from penstock.cli import catalog
from penstock.errors import DeclarationError
from penstock.settings import PROJECT
from tests.browser.server import DECLARED
from tests.chaos.projects import other_project

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    with other_project(DECLARED, {}):
        yield


def run(*args: str, code: int = 0) -> str:
    app = typer.Typer()
    app.command()(catalog.catalog)
    result = CliRunner().invoke(app, args)
    assert result.exit_code == code, result.output
    return result.output


def test_everything_is_listed_with_inputs_outputs_and_whether_it_runs() -> None:
    lines = {" ".join(line.split()[:2]): line for line in run().splitlines()}
    assert {
        "capture shops", "stream order-minutes", "sink order-points", "view shop-names", "archive order-archive",
        "backfill order-replay",
    } <= lines.keys()  # fmt: skip
    assert lines["sink order-points"].split()[2:] == [
        "shop",
        "order-minutes",
        "influxdb:shop.orders",
        "(store)",
        "Stateless",
        "yes",
    ]
    assert "EmitFinal: window 1 min, grace 10 s" in lines["stream order-minutes"]
    assert lines["archive order-archive"].rstrip().endswith("declared only")
    assert "bucket:lake/shop/orders (store)" in lines["archive order-archive"]
    assert "order-archive (archive)" in lines["backfill order-replay"]
    assert lines["declared only:"] == NOT_RUN


def test_as_json() -> None:
    found = json.loads(run("--json"))
    rows = {row["name"]: row for row in found["declared"]}
    assert rows["order-counts"]["reads"] == [{"kind": "pattern", "name": "order.*"}]
    runs = [rows[name]["runs"] for name in ("order-counts", "shop-names", "order-archive")]
    assert runs == [True, True, False]
    assert rows["shop-names"]["location"].startswith("jobs/shop/kept.py:")
    assert rows["order-replay"]["description"] == "Orders of a day that is computed again."
    assert rows["shops"]["location"] == "sql/captures/shops.sql:1:1"
    assert {"kind": "store", "name": "influxdb:shop.orders"} in found["graph"]["nodes"]
    assert {
        "source": {"kind": "topic", "name": "orders"},
        "target": {"kind": "pattern", "name": "order.*"},
        "matches": True,
    } in found["graph"]["edges"]


def test_one_name_is_shown_with_upstream_and_downstream() -> None:
    assert [row["name"] for row in json.loads(run("shop-names", "--json"))["declared"]] == ["shops", "shop-names"]
    assert run("till:towns", "--graph", "text").startswith("till:towns (table)\n  shops (capture)\n    shops (topic)\n")
    drawn = run("shop-names", "--graph", "mermaid")
    assert drawn.startswith("flowchart LR\n")
    assert '[/"shop-names<br/>view"/]' in drawn
    assert "order" not in drawn
    assert "order-counts" not in run("shop-names")


def test_the_whole_graph_is_drawn() -> None:
    assert "orders (topic)" in run("--graph", "text")
    assert run("--graph", "mermaid").count("-.->") == 4


def test_an_unknown_name_is_refused_with_close_matches() -> None:
    assert "there is no declaration, topic or store named 'shop-name'; did you mean shop-names" in run(
        "shop-name", code=2
    )


def test_an_unknown_graph_format_is_refused() -> None:
    run("--graph", "picture", code=2)
    run("--graph", "text", "--json", code=2)


def test_an_invalid_file_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(**_: object) -> Catalog:
        raise DeclarationError("jobs/a.py:3: view v is wrong", got="x", hint="mend it")

    monkeypatch.setattr(catalog, "load_partial", wrong)
    assert run(code=1) == "error: jobs/a.py:3: view v is wrong; got: x; hint: mend it\n"
    assert catalog.complete("") == []


def test_an_empty_catalog_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "load_partial", lambda: (Catalog({}, {}), []))
    assert "docs/catalog.md" in run()
    assert json.loads(run("--json")) == {"declared": [], "graph": {"nodes": [], "edges": []}, "wrong": []}


@pytest.mark.parametrize("arguments", [("catalog",), ("catalog", "--json"), ("--help",), ()])
def test_a_full_disk_is_an_error_of_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "penstock", *arguments]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, cwd=PROJECT)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: the disk is full; got: [Errno 28]")


def test_completion_offers_declarations_and_topics() -> None:
    assert catalog.complete("shop") == [
        "shop-names", "shop-points", "shop-points-dead-letter", "shop-totals", "shops", "shops-dead-letter",
    ]  # fmt: skip
    assert "order-minutes" in load().streams
