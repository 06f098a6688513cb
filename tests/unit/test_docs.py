"""The documentation: the site builds, its commands exist, its Python compiles."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.cli import load
from penstock.engine.state.fold_check import check_folds_of_topics
from penstock.model.sql import stream_file
from penstock.model.sql.stream_query import sql_stream
from penstock.monitoring.health import UNHEALTHY_STATES
from penstock.settings import PROJECT
from penstock.streams import Topic

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(language: str) -> Iterator[tuple[str, str]]:
    """Page name and text of each code block of a language."""
    for page in PAGES:
        for found, text in FENCE.findall(page.read_text()):
            if found == language:
                yield page.name, text


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page name and arguments of each `penstock` command in a console block."""
    for page, text in snippets("console"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("$ penstock "):
                yield page, shlex.split(line.removeprefix("$ penstock "), comments=True)


def parse(arguments: list[str]) -> None:
    """Parse a command line as `penstock` does, without running it; raises click.UsageError if it is wrong."""
    name, *rest = arguments
    command: click.Command = load(name)
    while isinstance(command, click.Group):
        context = command.make_context(name, list(rest), ignore_unknown_options=False)
        if not (rest := [*context._protected_args, *context.args]):
            return
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
    command.make_context(name, rest)


@pytest.mark.long
@pytest.mark.processes
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", PROJECT / "docs", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr


@pytest.mark.parametrize(
    ("page", "arguments"), list(commands()), ids=lambda x: x if isinstance(x, str) else " ".join(x)
)
def test_commands_in_the_docs_exist(page: str, arguments: list[str]) -> None:
    try:
        parse([a.split(";")[0] for a in arguments])
    except click.UsageError as e:
        pytest.fail(f"{page}: penstock {' '.join(arguments)}: {e.format_message()}")


@pytest.mark.processes
@pytest.mark.parametrize(("page", "text"), list(snippets("python")), ids=lambda x: x.split("\n")[0][:40])
def test_python_in_the_docs_compiles(page: str, text: str) -> None:
    compile(text, page, "exec")


@pytest.mark.parametrize(
    ("page", "text"), [one for one in snippets("sql") if "STREAM INTO" in one[1]], ids=lambda x: x.split("\n")[0][:40]
)
def test_streams_in_the_docs_are_declared(page: str, text: str) -> None:
    # What reads no JSON has topics of a module, as on its page.
    topics = {} if "AS JSON" in text else {"orders": Topic("orders", schema="id BIGINT, at TIMESTAMP, amount DOUBLE")}
    check_folds_of_topics(sql_stream(stream_file.parse(text, Path(page)), topics))


def test_files_named_in_the_docs_exist() -> None:
    """A path in backticks is one of the repository, of the library or of the tests; a file name alone is somewhere."""
    roots = [PROJECT, PROJECT / "penstock", PROJECT / "tests", PROJECT / "docs"]
    names = {
        p.name for root in ("penstock", "jobs", "plugins", "dags", "tests") for p in (PROJECT / root).rglob("*.py")
    }
    examples = {
        "jobs/orders/minutes.py", "tests/test_orders.py", "jobs/orders/__init__.py", "jobs/orders/archive.py",
        "jobs/shop/topics.py",
    }  # fmt: skip
    missing = []
    for page in PAGES:
        for path in re.findall(r"`([\w/]+\.py)`", page.read_text()):
            there = path in names if "/" not in path else any((root / path).exists() for root in roots)
            if not there and path not in examples:
                missing.append(f"{page.name}: {path}")
    assert missing == []


def test_operations_names_the_states_for_which_status_fails() -> None:
    text = (PROJECT / "docs" / "operations.md").read_text()
    [named] = re.findall(r"whose desired state is on is ([\w, ]+)\. \|", text)
    assert set(re.findall(r"\w+", named)) - {"or"} == UNHEALTHY_STATES
