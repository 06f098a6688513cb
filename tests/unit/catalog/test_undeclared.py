"""Streams in variables that nothing reads, which would not run and nobody would notice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog import apps, load, load_partial, mistakes_of_app
from penstock.errors import DeclarationError
from tests.chaos.projects import other_project

MAKE = """from dataclasses import replace
from penstock.streams import Archive, Input, Stateless, Stream, Topic, TopicOutput, View

def make(name):
    output = TopicOutput(Topic(f"{name}-out"), value="value")
    return Stream(name, "shop", {"rows": Input(Topic("in"))}, lambda rows: rows, output, Stateless())

"""
UNDECLARED = (
    r"jobs/shop/sales\.py: the {kind} in the variable {variable} is not declared, and would not run; got: .*{name}"
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Path]:
    """The folder of an app, with a module that is none of its declarations."""
    folder = tmp_path / "jobs" / "shop"
    folder.mkdir(parents=True)
    (folder / "_make.py").write_text(MAKE)
    with other_project(tmp_path, {}):
        yield folder


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("SALES = make('sales')", "SALES"),
        ("stream = make('sales')", "stream"),
        ("STREAM = make('returns')\nSALES = make('sales')", "SALES"),
        ("STREAMS = [make('returns')]\nMORE = [make('sales')]", "MORE"),
        ("SALES = {'sales': make('sales')}", "SALES"),
        ("BASE = make('sales')\nSTREAM = replace(BASE, name='returns')", "BASE"),
    ],
)
@pytest.mark.parametrize("begin", [MAKE, "from dataclasses import replace\nfrom jobs.shop._make import make\n"])
def test_a_stream_in_a_variable_of_another_name_is_an_error(shop: Path, begin: str, text: str, variable: str) -> None:
    (shop / "sales.py").write_text(begin + text)
    message = UNDECLARED.format(kind="stream", variable=variable, name="sales")
    with pytest.raises(DeclarationError, match=f"{message}; hint: name one stream STREAM, or put several"):
        load()
    _, (wrong,) = load_partial()
    assert wrong.path == shop / "sales.py"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{'a': View('a', Topic('t', compacted=True), 'n INT')}", "view"),
        ("{Archive('a', 'o', bucket='lake')}", "archive"),
    ],
)
def test_other_declarations_in_no_list_are_errors_too(shop: Path, text: str, kind: str) -> None:
    (shop / "sales.py").write_text(f"{MAKE}ALL = {text}")
    with pytest.raises(DeclarationError, match=UNDECLARED.format(kind=kind, variable="ALL", name="a")):
        load()


@pytest.mark.parametrize(
    "text",
    [
        "SALES = make('sales')\nSTREAM = SALES",
        "SALES = make('sales')\nSTREAMS = [SALES]\nBY_NAME = {one.name: one for one in STREAMS}",
        "STREAM = make('sales')\n_BASE = make('base')",
        "STREAM = make('sales')\ndef other(): return make('other')",
        "VIEW = View('v', Topic('t', compacted=True), 'n INT')\nALL = {VIEW.name: VIEW}\nSTREAM = make('sales')",
    ],
)
def test_what_is_declared_may_have_other_variables_too(shop: Path, text: str) -> None:
    (shop / "sales.py").write_text(MAKE + text)
    assert set(load().streams) == {"sales"}


@pytest.mark.parametrize(
    "text",
    [
        "from jobs.shop.sales import STREAM as SALES",
        "from jobs.shop.sales import STREAM as SALES\nBOTH = [SALES, SALES]",
        "from jobs.shop.sales import SALES",
        "from jobs.shop.sales import *",
        "import jobs.shop.sales\nSALES = jobs.shop.sales.STREAM",
        "import jobs.shop.sales\nALL = [*jobs.shop.sales.STREAMS]",
    ],
)
@pytest.mark.parametrize("importing", ["aaa", "zzz"])
def test_a_stream_of_another_module_is_the_concern_of_that_module(shop: Path, text: str, importing: str) -> None:
    (shop / "sales.py").write_text(f"{MAKE}SALES = STREAM = make('sales')\nSTREAMS = [make('returns')]")
    (shop / f"{importing}.py").write_text(text)
    made, wrong = load_partial()
    assert (set(made.streams), wrong) == ({"sales", "returns"}, [])


def test_a_stream_that_its_own_module_does_not_declare_is_an_error_of_that_module(shop: Path) -> None:
    (shop / "sales.py").write_text("from jobs.shop._make import make\nSALES = make('sales')")
    (shop / "aaa.py").write_text("from jobs.shop.sales import SALES")
    _, (wrong,) = load_partial()
    assert wrong.path == shop / "sales.py"


@pytest.mark.parametrize(
    ("file", "text", "got"),
    [
        ("jobs/sales.py", "STREAM = make('sales')", "STREAM"),
        ("jobs/sales.py", "STREAMS: list[Stream] = [make('sales')]", "STREAMS"),
        ("jobs/sales.py", "SALES = Stream('sales', 'shop', {}, make, None, Stateless())", "SALES"),
        ("jobs/sales.py", "ALL = [View('sales', Topic('t', compacted=True), 'n INT')]", "ALL"),
        ("jobs/shop/__init__.py", "STREAM = make('sales')", "STREAM"),
        (
            "jobs/shop/parts/sales.py",
            "import penstock.streams\nA = penstock.streams.Archive('a', 'o', bucket='b')",
            "A",
        ),
    ],
)
def test_a_module_that_is_not_read_declares_nothing_silently(tmp_path: Path, file: str, text: str, got: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    # It is not imported: it may be a program.
    path.write_text(f"{text}\nraise SystemExit('imported')")
    message = f"^{re.escape(str(path))}: a stream .* is not declared, and would not run; got: {got}; hint: move it into"
    with other_project(tmp_path, {}):
        with pytest.raises(DeclarationError, match=message):
            load()
        _, (wrong,) = load_partial()
    assert wrong.path == path


@pytest.mark.parametrize(
    ("file", "text", "folder"),
    [
        ("sql/sales.sql", "-- Sales.\n/* of\n a day */ stream into sales\nREAD", "streams"),
        ("sql/stream/sales.sql", "STREAM INTO sales", "streams"),
        ("sql/streams/shop/sales.sql", "STREAM INTO sales", "streams"),
        ("sql/sales.sql", "CAPTURE INTO sales FROM", "captures"),
        ("sql/sink/sales.sql", "UPSERT INTO mongodb.shop.sales", "sinks"),
    ],
)
def test_a_statement_in_another_folder_is_an_error(tmp_path: Path, file: str, text: str, folder: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with other_project(tmp_path, {}), pytest.raises(DeclarationError, match=f"hint: move .*/sql/{folder}/sales.sql$"):
        load()


def test_what_a_module_that_is_not_read_gives_to_others_is_declared_there(shop: Path) -> None:
    jobs = shop.parent
    (jobs / "shared.py").write_text(f"{MAKE}STREAM = make('sales')\nLAKE = Archive('lake', 'sales-out', bucket='lake')")
    (shop / "sales.py").write_text("from jobs.shared import LAKE, STREAM")
    (jobs / "topics.py").write_text("from penstock.streams import Topic\nORDERS = Topic('orders')\n_DRAFT = Stream()")
    (jobs / "program.py").write_text("def main():\n    STREAM = Stream()\n    return STREAM")
    (jobs.parent / "sql" / "tables").mkdir(parents=True)
    (jobs.parent / "sql" / "tables" / "sales.sql").write_text("CREATE TABLE sales (id INT)")
    assert {"sales", "lake"} <= load().declared.keys()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("jobs/shop/__init__.py", "from jobs.shop import sales\nfrom jobs.shop.sales import STREAM as SALES\n{}"),
        ("jobs/simulator.py", "import sys\nSTREAM = 'sales'\nSTREAMS: list[str] = ['sales', 'returns']"),
        ("jobs/program.py", "import sys\nSTREAM = sys.stdout\nSTREAMS = []"),
        ("jobs/shop/tests/sales.py", "STREAM = Stream('sales')"),
        ("jobs/shop/parts/test_sales.py", "LAKE = Archive('lake', 'sales')"),
        ("jobs/conftest.py", "STREAM = Stream('sales')"),
        ("jobs/shop/_old/sales.py", "STREAM = Stream('sales')"),
    ],
)
def test_a_module_that_makes_no_declaration_is_no_error(shop: Path, file: str, text: str) -> None:
    (shop / "sales.py").write_text(f"{MAKE}STREAM = make('sales')")
    path = shop.parent.parent / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.format("STREAM = SALES\nSTREAMS = [sales.STREAM]"))
    assert set(load().streams) == {"sales"}


def test_a_stream_that_an_imported_function_makes_is_made_there(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/sales.py").write_text("from shop import make\nSALES = make()\nSTREAMS = [SALES]")
    with other_project(tmp_path, {}), pytest.raises(DeclarationError, match="got: STREAMS"):
        load()


def test_a_file_that_is_not_read_makes_no_app(shop: Path) -> None:
    project = shop.parent.parent
    (shop / "sales.py").write_text(f"{MAKE}STREAM = make('sales')")
    for file, text in {
        "jobs/returns.py": "STREAM = make('returns')",
        "jobs/shop/parts/stock.py": "STREAM = make('stock')",
        "sql/tables/people.sql": "STREAM INTO people",
    }.items():
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text(text)
    catalog, broken = load_partial()
    assert set(apps(catalog, broken)) == {"shop"}
    assert [e.path.name for e in mistakes_of_app("shop", catalog, broken)] == ["stock.py"]


def test_many_comments_of_a_file_are_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "sql/tables").mkdir(parents=True)
    (tmp_path / "sql/tables/sales.sql").write_text("/* a */\n" * 500 + "-- b\n" * 500 + "CREATE TABLE sales (id INT)")
    with other_project(tmp_path, {}):
        assert load_partial()[1] == []


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sql/tables").mkdir(parents=True)
    (tmp_path / "sql/tables/sales.sql").touch()
    read_text = Path.read_text

    def refuse(path: Path, *args: str, **options: str) -> str:
        if path.name == "sales.sql":
            raise PermissionError(path)
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    with other_project(tmp_path, {}):
        assert load_partial()[1] == []
