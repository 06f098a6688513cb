"""Gaps of inputs: how they are found, accepted one by one, counted and shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.catalog import build
from penstock.cli import app
from penstock.control import Actor, Control, ProgressRow, connect
from penstock.control.repositories.data_loss import DataLoss
from penstock.engine.faults.data_loss import BrokerLogs, InputChanges, _find_gaps, _offsets_read, _within_batch
from penstock.errors import DataLossChanged
from penstock.model.output import CommitMarker
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.caches import clear_caches
from tests.support.control_tables import create_tables

ME = Actor("ann", "cli")
REMOVED = DataLoss("t", "removed", 0, 5, 12, 7, "x")
AGAIN = DataLoss("t", "recreated", topic_id="y")

LOGS = {("t", 0): (10, 30), ("t", 1): (0, 4)}


@pytest.mark.parametrize(
    ("starts", "ends", "ids", "found"),
    [
        ({"t": {0: 10, 1: 4}}, {"t": {0: 30, 1: 4}}, {"t": "x"}, []),
        ({"t": {0: 3, 1: 0}}, {"t": {0: 9, 1: 0}}, {"t": "x"}, [DataLoss("t", "removed", 0, 3, 10, 7, "x")]),
        ({"t": {0: 31, 1: 4}}, {"t": {0: 31, 1: 4}}, {}, [DataLoss("t", "cut", 0, 30, 31, 0, "x")]),
        ({"t": {0: 12, 1: 2}}, {"t": {0: 12, 1: 9}}, {}, [DataLoss("t", "cut", 1, 4, 9, 5, "x")]),
        # A partition that came later is read from its beginning; a topic that came later from what it has.
        ({"t": {1: 4}}, {"t": {0: 30, 1: 4}}, {}, [DataLoss("t", "removed", 0, 0, 10, 10, "x")]),
        ({}, {"t": {0: 30, 1: 4}}, {}, []),
        ({"t": {0: 3, 1: 0}}, {"t": {0: 9, 1: 0}}, {"t": "old"}, [DataLoss("t", "recreated", topic_id="x")]),
        ({}, {"t": {0: 30, 1: 4}}, {"t": "old"}, [DataLoss("t", "recreated", topic_id="x")]),
        ({"gone": {0: 3}}, {"gone": {0: 3}}, {"gone": "z"}, [DataLoss("gone", "deleted", topic_id="z")]),
    ],
    ids=[
        "all there",
        "removed",
        "cut",
        "cut before it was read",
        "new partition",
        "new topic",
        "recreated",
        "made again since it was planned",
        "deleted",
    ],
)
def test_what_is_found(
    starts: dict[str, dict[int, int]], ends: dict[str, dict[int, int]], ids: dict[str, str], found: list[DataLoss]
) -> None:
    assert list(_find_gaps(starts, ends, ids, BrokerLogs({"t": "x"}, LOGS))) == found


@pytest.mark.parametrize(
    ("given", "fails"),
    [
        (Input(Topic("t")), True),
        (Input(Topic("t"), on_data_loss="continue"), False),
        (Input(pattern="t"), False),
        (Input(pattern="t", on_data_loss="fail"), True),
    ],
)
def test_an_input_of_a_topic_fails_on_data_loss_and_a_pattern_continues_unless_declared(
    given: Input, *, fails: bool
) -> None:
    assert given.fails_on_data_loss == fails


def test_a_batch_looks_at_the_partitions_that_it_reads() -> None:
    starts, ends = {"t": {0: 1, 1: 5}, "gone": {0: 3}}, {"t": {0: 9, 1: 5, 2: 0}, "new": {0: 4}}
    assert _offsets_read(starts, ends) == ({"t": {0: 1}, "gone": {}}, {"t": {0: 9, 2: 0}, "new": {0: 4}})


def test_a_batch_counts_what_concerns_it() -> None:
    assert _within_batch(REMOVED, {"t": {0: 8}}) == DataLoss("t", "removed", 0, 5, 8, 3, "x")
    assert _within_batch(REMOVED, {"t": {0: 12}}) == REMOVED
    assert _within_batch(AGAIN, {"t": {0: 8}}) == AGAIN


def test_a_mark_is_brought_to_where_reading_goes_on() -> None:
    mended = InputChanges(frozenset({"again"}), {("t", 0): (10, 30)}, {"t": "x", "again": "new"})
    mark = CommitMarker("q", 4, {"t": {0: 5, 1: 2}, "again": {0: 9}, "old": {0: 1}}, {"t": "x", "again": "was"})
    assert mended.within(mark).offsets == {"t": {0: 10, 1: 2}, "again": {0: 9}, "old": {0: 1}}
    assert mended.without(mark) == CommitMarker("q", 4, {"t": {0: 5, 1: 2}, "old": {0: 1}}, {"t": "x"})


def test_exactly_what_was_shown_is_accepted(control: Control) -> None:
    assert control.report_data_loss("s", [REMOVED, AGAIN]) == set()
    shown = [row.id for row in control.data_losses("s")]
    assert control.accept_data_loss("s", ME, shown) == [AGAIN, REMOVED]
    assert control.report_data_loss("s", [REMOVED]) == {REMOVED}
    more = DataLoss("t", "removed", 0, 5, 13, 8, "x")
    assert control.report_data_loss("s", [more]) == set()
    # What was accepted and then was no more is asked for once more.
    assert control.report_data_loss("s", [REMOVED]) == set()
    assert control.report_data_loss("other", []) == set()
    assert [row.gap for row in control.data_losses("s")] == [REMOVED]


def test_a_gap_that_nobody_was_shown_is_not_accepted_and_neither_are_the_others(control: Control) -> None:
    control.report_data_loss("s", [REMOVED])
    shown = [row.id for row in control.data_losses("s")]
    grown = DataLoss("t", "removed", 0, 5, 13, 8, "x")
    for now in ([grown], [REMOVED, AGAIN]):
        control.report_data_loss("s", now)
        with pytest.raises(DataLossChanged, match=f"got: {re.escape(str(now[-1]))}; hint: look at its gaps again"):
            control.accept_data_loss("s", ME, shown)
        assert control.report_data_loss("s", now) == set()
    assert control.actions() == []
    # One that has gone meanwhile is no hindrance.
    shown = [row.id for row in control.data_losses("s")]
    control.report_data_loss("s", [REMOVED])
    assert control.accept_data_loss("s", ME, shown) == [REMOVED]
    assert control.accept_data_loss("s", ME, shown) == []


def test_a_gap_that_was_passed_is_counted_once(control: Control) -> None:
    control.report_data_loss("s", [REMOVED])
    control.accept_data_loss("s", ME, [row.id for row in control.data_losses("s")])
    for _ in range(2):
        control.pass_data_loss("s", [REMOVED, AGAIN])
    assert control.report_data_loss("s", []) == set()
    assert {(row.gap, row.accepted_by, row.passed_at is not None) for row in control.data_losses()} == {
        (REMOVED, "ann", True),
        (AGAIN, "its declaration", True),
    }
    assert control.report_data_loss("s", [REMOVED]) == {REMOVED}


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """A stream that stands before a gap."""
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/control.db")
    clear_caches()
    found = connect()
    create_tables(found)
    output = TopicOutput(Topic("out"), value="value")
    found.sync(build([Stream("s", "a", {"rows": Input(Topic("t"))}, lambda rows: rows, output, Stateless())]))
    found.report([ProgressRow("s", "a", "i", state="blocked", error="a gap")], keep=False)
    found.report_data_loss("s", [REMOVED])
    yield found
    found.engine.dispose()
    clear_caches()


def run(*args: str, code: int = 0, answer: str = "") -> str:
    result = CliRunner().invoke(app, ["streams", *args], input=answer)
    assert result.exit_code == code, result.output
    return result.output


def test_going_on_is_one_command(blocked: Control) -> None:
    assert "t[0]: offsets 5 to 11 were removed before they were read" in run("show", "s")
    assert "no: `penstock streams go-on s`" in run("show", "s")
    asked = run("go-on", "s", code=1, answer="n\n")
    assert "t[0]: offsets 5 to 11 were removed before they were read" in asked
    assert blocked.report_data_loss("s", [REMOVED]) == set()
    assert "accepted: t[0]: offsets 5 to 11" in run("go-on", "s", "-m", "it was the test's", answer="y\n")
    assert re.search(r"^accepted by \S+: t\[0\]: offsets 5 to 11", run("go-on", "s"))
    assert [action["verb"] for action in blocked.actions()] == ["go-on"]
    blocked.report_data_loss("s", [AGAIN])
    assert "accepted: t: it was deleted and recreated" in run("go-on", "s", "--yes")
    blocked.report_data_loss("s", [REMOVED])
    blocked.pass_data_loss("s", [REMOVED])
    assert "stream s is not blocked by a gap" in run("go-on", "s", code=1)
    shown = run("show", "s")
    assert "accepted" in shown
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith("lost")] == ["7"]
    blocked.report_data_loss("s", [AGAIN])
    blocked.pass_data_loss("s", [AGAIN])
    assert "7, and an unknown number" in run("show", "s")


def test_all_gaps_that_block_a_stream_are_shown(blocked: Control) -> None:
    lost = [DataLoss("t", "removed", p, 0, 5, 5, "x") for p in range(30)]
    blocked.report_data_loss("s", lost)
    blocked.pass_data_loss("s", lost)
    blocked.report_data_loss("s", [DataLoss("u", "removed", p, 0, 5, 5, "x") for p in range(30)])
    assert run("show", "s").count("u[") == 30
