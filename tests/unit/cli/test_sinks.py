"""`penstock sinks state`: of sinks alone, with what their writers counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner, Result

from penstock import cli
from penstock.catalog import BrokenFile, build
from penstock.cli import sinks
from penstock.control import Control, ProgressRow, connect
from penstock.errors import DeclarationError
from penstock.model.output import Output
from penstock.sinks.core.document import DocumentOutput
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.caches import clear_caches
from tests.support.control_tables import create_tables


@dataclass(frozen=True, kw_only=True)
class Shelf(DocumentOutput):
    writer: ClassVar[str] = "nowhere:none"

    @property
    def name(self) -> str:
        return f"shelf:{self.sink}"


def stream(name: str, output: Output, reads: str = "orders") -> Stream:
    return Stream(name, "sinks", {"rows": Input(Topic(reads), record=True)}, lambda rows: rows, output, Stateless())


SEARCH = stream("search", Shelf(sink="search", connection="shelf"))
COPY = stream("copy", TopicOutput(Topic("copied"), value="value"))


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/control.db")
    clear_caches()
    wrong = [BrokenFile(Path("sql/sinks/broken.sql"), DeclarationError("broken.sql:1:1: this is no clause"))]
    catalog, found = build([SEARCH, COPY]), connect()
    monkeypatch.setattr(sinks, "partial_catalog", lambda: (catalog, wrong))
    create_tables(found)
    found.sync(catalog)
    incarnation = found.claim("sinks", None, host="pond/1/2", spec_hash="x", owner="o", log="")
    assert incarnation is not None
    found.update_driver(incarnation, state="running", pid=77)
    counted = {"written": 40, "conflicts": 7}
    row = ProgressRow("search", "sinks", incarnation, state="waiting", error="nobody there", store=counted)
    found.report([row], keep=False)
    yield found
    found.engine.dispose()
    clear_caches()


def run(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli.app, ["sinks", *args])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.usefixtures("control")
def test_the_state_of_sinks() -> None:
    """A file that cannot be read is told by itself, and takes no other sink with it."""
    told = run("state", code=1)
    assert told.stderr == "error: broken.sql:1:1: this is no clause\n"
    (line,) = told.stdout.splitlines()[1:]
    assert line.split()[:3] == ["search", "sinks", "waiting"]
    assert line.split()[6] == "7"
    assert line.endswith("nobody there")
    (found,) = json.loads(run("state", "search", "--json").output)
    assert (found["state"], found["store"]) == ("waiting", {"written": 40, "conflicts": 7})
    for command in ("state", "dry-run"):
        assert "broken.sql:1:1: this is no clause" in run(command, "broken", code=1).output


def test_dead_letters_of_a_sink_have_a_topic_of_their_own() -> None:
    """Else each dead letter would make another, or stand among rows."""
    assert (list(SEARCH.side_outputs), build([SEARCH]).dead_letter_topics) == (
        ["search-dead-letter"],
        ["search-dead-letter", "penstock.dead-letters"],
    )
    with pytest.raises(DeclarationError, match="reads its own output"):
        stream("search", Shelf(sink="search", connection="shelf", dead_letters="orders"))
    other = Topic("copied", partitions=1, heartbeat_every=0)
    with pytest.raises(DeclarationError, match="search writes dead letters where stream copy writes its rows"):
        build(
            [
                stream("search", Shelf(sink="search", connection="shelf", dead_letters="copied")),
                stream("copy", TopicOutput(other, value="value")),
            ]
        )
