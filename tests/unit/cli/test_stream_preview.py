"""Streams and files as arguments of `penstock streams check`, `explain` and `preview`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.streams import app
from tests.chaos.projects import other_project
from tests.support.caches import clear_caches

STREAM = """STREAM INTO {topic}
READ orders AS JSON (shop STRING, amount DOUBLE, timestamp BIGINT) EVENT TIME timestamp_millis(timestamp)
VALUE shop
AS SELECT shop FROM orders
"""
MODULE = """from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput

def stream(name):
    return Stream(name, "shop", {"orders": Input(Topic("orders"), record=True)}, lambda orders: orders,
                  TopicOutput(Topic(name), value="value"), Stateless())

STREAMS = [stream(name) for name in NAMES]
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    for name, text in {
        "sql/streams/shops.sql": STREAM.format(topic="shop-names"),
        "jobs/shop/one.py": 'NAMES = ["copied"]\n' + MODULE,
        "jobs/shop/two.py": 'NAMES = ["first", "second"]\n' + MODULE,
    }.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with other_project(tmp_path / "shop", {"PENSTOCK_HOME": tmp_path / "home"}):
        yield tmp_path / "shop"


def run(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result.output


def test_all_streams_are_checked_without_a_broker(project: Path) -> None:
    assert run("check").split() == [word for name in ("copied", "first", "second", "shops") for word in ("✓", name)]
    (project / "sql/streams/shops.sql").write_text("STREAM INTO shop-names READ orders")
    clear_caches()
    output = run("check", code=1)
    assert "✓ copied" in output
    assert "shops.sql:1:29: the file ends too soon" in output


FOLD = """STREAM INTO totals
READ orders AS JSON (shop STRING, amount DOUBLE, timestamp BIGINT) EVENT TIME timestamp_millis(timestamp)
FOLD totals FROM orders BY (shop) STATE (total DOUBLE)
    UPDATE AS (SELECT shop, max(shop) AS total FROM records GROUP BY shop)
    ROWS (shop STRING) EMIT AS (SELECT shop FROM folded)
AS SELECT shop FROM totals
"""


def test_folds_of_topics_are_checked_without_spark(project: Path) -> None:
    (project / "sql/streams/totals.sql").write_text(FOLD)
    for arguments in ([], ["totals"]):
        output = run("check", *arguments, code=1)
        assert "totals.sql:4:16: the update query of fold totals gives other columns than declared" in output
        assert "✓ totals" not in output


def test_a_stream_is_named_by_itself_or_its_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "sql")
    names = ["shops", "streams/shops.sql", project / "sql/streams/shops.sql", project / "jobs/shop/one.py", "first"]
    assert run("check", *names) == "✓ shops\n✓ shops\n✓ shops\n✓ copied\n✓ first\n"


@pytest.mark.usefixtures("project")
def test_a_draft_outside_the_project_may_have_the_name_of_a_stream(tmp_path: Path) -> None:
    draft, other = tmp_path / "shops.sql", tmp_path / "streets.sql"
    draft.write_text(STREAM.format(topic="shop-names"))
    other.write_text(STREAM.format(topic="street-names"))
    assert run("check", draft, other) == "✓ shops\n✓ streets\n"
    other.write_text(STREAM.format(topic="shop-names"))
    assert "streets" in run("check", other, code=1)


@pytest.mark.parametrize(
    ("argument", "message", "code"),
    [
        ("shopz", "error: there is no stream named 'shopz'; did you mean shops", 2),
        ("nowhere.sql", "error: there is no such file; got: nowhere.sql", 1),
        (
            "{project}/jobs/shop/two.py",
            "one stream; got: {project}/jobs/shop/two.py: first, second",
            1,
        ),
        ("{project}/README.py", "does not declare one stream; got: {project}/README.py: none", 1),
    ],
)
def test_what_names_no_stream_is_refused(project: Path, argument: str, message: str, code: int) -> None:
    (project / "README.py").touch()
    assert message.format(project=project) in run("check", argument.format(project=project), code=code)


@pytest.mark.usefixtures("project")
def test_a_preview_begins_at_a_time_and_lasts_for_a_duration() -> None:
    assert "this is not a position to start at; got: 'noon'" in run("preview", "shops", "--from", "noon", code=1)
    for length in ("30", "0s", "0.1ms", "1e9d", "1d", "5 m"):
        assert f"this is not a duration; got: {length}; hint: e.g. 90s" in run(
            "preview", "shops", "--for", length, code=1
        )
    assert "a preview begins at a time; got: orders:0=3" in run("preview", "shops", "--from", "orders:0=3", code=1)


def test_a_preview_of_a_sink_names_the_command_for_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", "mongodb://localhost")
    (project / "sql/sinks").mkdir()
    (project / "sql/sinks/places.sql").write_text(
        "UPSERT INTO mongodb.shop.places READ shop-names AS JSON (shop STRING) KEY (shop) TOMBSTONES IGNORE\n"
        "AS SELECT shop FROM `shop-names`"
    )
    clear_caches()
    assert "does not write to topics; got: mongodb:shop.places; hint: penstock sinks dry-run places" in run(
        "preview", "places", code=1
    )
