"""Names are the field's terms, and each has one meaning; docs/glossary.md says which."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from penstock import streams
from penstock.catalog import load
from penstock.cli import COMMANDS
from penstock.settings import PROJECT

# Words that say what happened to a thing instead of what it is, and metaphors.
RETIRED = {
    "again", "amiss", "aside", "beaten", "between", "blame", "copies", "cures", "damage", "found", "giving", "given",
    "graves", "holds", "kept", "known", "leftovers", "looks", "made", "newest", "numbered", "patience", "placed",
    "places", "placing", "portions", "said", "seen", "served", "shown", "told", "through", "untaken", "verdict",
    "weakened", "whole", "words",
}  # fmt: skip
LIBRARY = sorted((PROJECT / "penstock").rglob("*.py"))


DEFINITION = re.compile(r"^(class|def|async def) ([A-Za-z]\w*)", re.MULTILINE)


@cache
def definitions(path: Path) -> list[tuple[str, str]]:
    """`class`, `def` or `async def`, and the name, of each public definition of a module."""
    return DEFINITION.findall(path.read_text())


def test_a_class_name_is_unique_in_the_library() -> None:
    where = defaultdict(list)
    for path in LIBRARY:
        for name in (name for kind, name in definitions(path) if kind == "class"):
            where[name].append(str(path.relative_to(PROJECT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_no_module_has_a_retired_name() -> None:
    modules = [*LIBRARY, *(PROJECT / "jobs").rglob("*.py")]
    retired = RETIRED | {"letters"}
    assert [str(p) for p in modules if p.stem in retired or RETIRED & set(p.stem.split("_"))] == []


def test_no_public_class_or_function_has_a_retired_name() -> None:
    names = [
        f"{path.relative_to(PROJECT)}: {name}"
        for path in LIBRARY
        for _, name in definitions(path)
        if name.lower() in RETIRED
    ]
    assert names == []


def test_no_constant_has_a_retired_name() -> None:
    names = [
        f"{path.relative_to(PROJECT)}: {constant}"
        for path in LIBRARY
        for line in re.findall(r"^([A-Z_][A-Z0-9_, ]*)(?::.*)? = ", path.read_text(), re.MULTILINE)
        for constant in line.split(", ")
        if constant.strip("_").lower() in RETIRED or "PATIENCE" in constant
    ]
    assert names == []


# Not even for local variables: they do not say what they hold.
RETIRED_LOCALS = {"aside", "asked", "found", "given", "kept", "made", "said", "seen", "told", "through"}
PACKAGES_WITH_PLAIN_LOCALS = (
    "jobs", "dags", "tests/chaos", *(f"penstock/{package}" for package in (
        "airflow", "cli", "devstack", "engine", "host", "java", "monitoring", "object_store", "registry", "settings",
        "supervision", "testing", "views", "web",
    )),
)  # fmt: skip


LOCAL = re.compile(rf"\b({'|'.join(sorted(RETIRED_LOCALS))})\b")


def test_no_local_variable_has_a_retired_name() -> None:
    modules = [path for package in PACKAGES_WITH_PLAIN_LOCALS for path in sorted((PROJECT / package).rglob("*.py"))]
    names = {
        f"{path.relative_to(PROJECT)}:{node.lineno}: {name}"
        for path, text in ((path, path.read_text()) for path in modules)
        if LOCAL.search(text)
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and (name := node.id) in RETIRED_LOCALS)
        or (isinstance(node, ast.arg) and (name := node.arg) in RETIRED_LOCALS)
    }
    assert names == set()


def test_what_authors_import_and_operators_type_is_in_the_glossary() -> None:
    text = (PROJECT / "docs" / "glossary.md").read_text().lower()
    words = [re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower() for name in streams.__all__ if name != "F"]
    nouns = [name.removesuffix("s").replace("-", " ") for name in COMMANDS]
    commands_of_the_machine = {
        "up",
        "statu",
        "log",
        "down",
        "clean",
        "doctor",
        "migrate",
        "catalog",
        "meter",
        "demo",
        "init",
        "test",
    }
    missing = [w for w in [*words, *nouns] if w not in text and w.replace(" ", "") not in text]
    assert [w for w in missing if w not in commands_of_the_machine] == []


def test_no_module_of_the_library_or_the_page_names_a_shipped_system() -> None:
    """Folders of jobs/, and names with a hyphen that are declared there or in sql/; single words may be English."""
    catalog = load()
    english = {"metrics", "quality", "accounts"}
    systems = {path.name for path in (PROJECT / "jobs").iterdir() if path.is_dir() and path.name[0] not in "_."}
    names = systems - english | {name for name in (*catalog.declared, *catalog.topics) if "-" in name}
    page = [path for path in (PROJECT / "penstock" / "airflow").rglob("*") if path.suffix in (".js", ".css", ".html")]
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(names)))})(?![\w-])")
    hits = [
        f"{path.relative_to(PROJECT)}: {name}"
        for path in [*LIBRARY, *page]
        for name in pattern.findall(path.read_text())
    ]
    assert hits == []
