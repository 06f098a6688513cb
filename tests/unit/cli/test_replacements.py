"""`penstock streams replace` and `penstock replacements` on a real control database (SQLite)."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from penstock.cli import app as penstock
from penstock.cli import output
from penstock.cli import replacements as commands
from penstock.control import Actor, Control, ReplacementRow, ReplacementState, connect
from penstock.control.repositories.apps import DeclaredApps
from penstock.monitoring.dashboard.replacements import REPLACEMENT_REMEDIES, REPLACEMENT_STATES
from penstock.settings import PROJECT
from penstock.supervision import release as releases
from tests.support.caches import clear_caches
from tests.support.control_tables import create_tables

DECLARED = cast(
    "DeclaredApps",
    SimpleNamespace(
        apps={"metrics": ()},
        supervised={name: SimpleNamespace(name=name, app="metrics") for name in ("bundles", "summaries")},
    ),
)
FIGURES = {
    "records": 1500, "total": 6000, "rate": 250.0, "remaining_ms": 18_000, "lag": 4500, "compared": 12, "equal": 10,
    "different": 1, "only_new": 1, "only_running": 0,
    "examples": [{"key": "shop-1", "new": {"total": 7}, "running": {"total": 5}}, {"key": "shop-2", "new": None}],
}  # fmt: skip


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """The streams `bundles` and `summaries` of app `metrics`, of which release 1 runs."""
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/control.db")
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    clear_caches()
    found = connect()
    create_tables(found)
    found.sync(DECLARED)
    found.release("metrics", Actor("me", "cli"), digest="old" * 5)

    def run_check(*_: object) -> dict[str, Any]:
        names = ["bundles", "summaries"]
        return {"names": names, "replaceable": names[:1], "streams": True, "wrong": [], "others": [], "refused": []}

    monkeypatch.setattr(releases, "_run_check", run_check)
    yield found
    found.engine.dispose()
    clear_caches()


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(penstock, args)
    assert result.exit_code == code, result.output
    return result.output


def replace(*args: str, code: int = 0) -> str:
    return run("streams", "replace", *args, code=code)


def newest(control: Control) -> ReplacementRow:
    row = control.replacement_of("bundles")
    assert row
    return row


def test_a_stream_is_replaced_with_options(control: Control) -> None:
    assert "can be replaced" in replace("bundles", "--dry-run")
    assert control.replacements() == []
    options = ["--from", "2026-01-31T12", "--rate", "5000", "--write", "all", "--expect", "equal-except:total"]
    assert "penstock replacements show bundles" in replace("bundles", *options, "--cut", "manual", "-m", "wider")
    assert newest(control).options == {
        "from": 1_769_860_800_000, "rate": 5000, "write": "all", "expect": {"equal": True, "except": ["total"]},
        "cut": "manual", "in_place": False, "archive": True,
    }  # fmt: skip
    assert control.actions(1)[0]["detail"] == "wider"
    assert "error: app metrics is not released while a stream of it is replaced" in replace("bundles", code=1)


def test_the_checkpoint_stays_as_it_is_meanwhile(control: Control) -> None:
    replace("bundles")
    control.set_desired(["bundles"], "off", Actor("ops", "command"))
    refused = "bundles is being replaced, which needs its checkpoint as it is; got: its replacement is queued"
    assert refused in run("streams", "rebuild", "bundles", code=1)


@pytest.mark.usefixtures("control")
def test_what_cannot_be_replaced_says_what_can() -> None:
    assert "metrics is an app, and a replacement is of one stream; got: streams bundles, summaries" in replace(
        "metrics", code=1
    )
    assert "did you mean bundles?" in replace("bundels", code=2)
    assert "summaries cannot be replaced; got: it is no stream with topics" in replace("summaries", code=1)
    assert "got: same; hint: write equal" in replace("bundles", "--expect", "same", code=1)
    assert "error: bundles has no replacement; hint: `penstock streams replace bundles`" in run(
        "replacements", "show", "bundles", code=1
    )
    assert "No stream was replaced yet" in run("replacements", "list")


def test_its_progress_and_comparison_are_shown(control: Control) -> None:
    replace("bundles", "--expect", "equal")
    row = newest(control)
    control.move_replacement(row.id, "building", why="reads its backlog")
    control.report_replacement(row.id, figures=FIGURES)
    control.claim("replacement:bundles", None, host="pond/1/2", spec_hash="x", owner="o", log="/logs/new.log")
    text = " ".join(run("replacements", "show", "bundles").split())
    for part in (
        "state building", "why reads its backlog", "1,500 of 6,000 records (25%)", "records/s 250", "time left 18 s",
        "lag 4,500", "equal, different 10, 1", "only new, only running 1, 0", "expects equal", "log /logs/new.log",
        "key new running", 'shop-1 {"total":7} {"total":5}', "shop-2 null null", f"in place of {'old' * 4}",
    ):  # fmt: skip
        assert part in text
    shown = json.loads(run("replacements", "show", "bundles", "--json"))
    assert (shown["figures"], shown["driver"]["log"]) == (FIGURES, "/logs/new.log")
    assert [one["id"] for one in json.loads(run("replacements", "list", "--json"))] == [row.id]
    assert "1,500 of 6,000 records (25%)" in run("replacements", "list")
    listed = json.loads(run("streams", "list", "--json"))
    assert [one["name"] for one in listed] == ["bundles", "summaries"], "a replacement is no stream"
    control.report_replacement(row.id, figures={**FIGURES, "lag": 0, "remaining_ms": 0})
    assert "time left - lag 0" in " ".join(run("replacements", "show", "bundles").split()), "it has caught up"


def test_it_is_cut_cancelled_and_confirmed_when_its_state_allows_it(control: Control) -> None:
    replace("bundles")
    assert "cannot be confirmed; got: it is queued; hint: it must be cut" in run(
        "replacements", "confirm", "bundles", code=1
    )
    run("replacements", "cut", "bundles", "-m", "as expected")
    assert newest(control).cut_requested_at
    assert control.actions(1)[0]["detail"] == "as expected"
    run("replacements", "cancel", "bundles", "-m", "wrong")
    assert newest(control).state == "cancelled"
    assert newest(control).why.endswith(": wrong")
    for command in ("cut", "cancel"):
        assert "got: it is cancelled: cancelled by" in run("replacements", command, "bundles", code=1)
    replace("bundles")
    control.undo_replacement(newest(control).id, "a row differs; got: 1 of 2; hint: look")
    for command in ("cut", "cancel"):
        text = run("replacements", command, "bundles", code=1)
        assert ("got: it is failed: a row differs; hint: it must be" in text, text.count("hint: ")) == (True, 1), text
    replace("bundles")
    control.move_replacement(newest(control).id, "following")
    control.begin_cut(newest(control).id)
    control.move_replacement(newest(control).id, "cut")
    run("replacements", "confirm", "bundles")
    assert newest(control).state == "confirmed"


def test_a_check_that_takes_long_says_so(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    check, is_said = releases._run_check, threading.Event()

    def load() -> tuple[float, float, float]:
        is_said.set()
        return (16.0, 8.0, 4.0)

    def slow_check(*args: Any) -> dict[str, Any]:
        assert is_said.wait(30)
        return check(*args)

    monkeypatch.setattr(output, "REMIND_EVERY", 0.01)
    monkeypatch.setattr(os, "getloadavg", load)
    monkeypatch.setattr(releases, "_run_check", slow_check)
    assert "still checking after 0 s; 16 processes want the" in replace("bundles", "--dry-run")


def test_a_cut_is_confirmed_though_what_followed_it_was_cancelled(control: Control) -> None:
    replace("bundles")
    control.move_replacement(newest(control).id, "following")
    control.begin_cut(newest(control).id)
    control.move_replacement(newest(control).id, "cut")
    cut = newest(control)
    replace("bundles")
    assert "it is queued" in run("replacements", "confirm", "bundles", code=1)
    run("replacements", "cancel", "bundles")
    run("replacements", "confirm", "bundles")
    row = control.replacement(cut.id)
    assert row
    assert row.state == "confirmed"
    assert "it is confirmed" in run("replacements", "confirm", "bundles", code=1)


@pytest.mark.parametrize(("end", "code"), [("cut", 0), ("failed", 1)])
def test_a_command_that_waits_ends_with_it(
    control: Control, monkeypatch: pytest.MonkeyPatch, end: str, code: int
) -> None:
    steps: list[ReplacementState] = ["following", "cutting", "cut" if end == "cut" else "failed"]
    look = control.replacement

    def move_and_look(identity: str) -> ReplacementRow | None:
        row = look(identity)
        match steps and steps.pop(0):
            case "cutting":
                control.begin_cut(identity)
            case "failed":
                control.undo_replacement(identity, "a row differs; got: 1 of 2; hint: look")
            case "following" | "cut" as to:
                control.move_replacement(identity, to)
        return row

    monkeypatch.setattr(control, "replacement", move_and_look)
    monkeypatch.setattr(commands, "WAIT_EVERY", 0)
    text = replace("bundles", "--wait", code=code)
    lines = [line for line in text.splitlines() if line.partition(":")[0] in REPLACEMENT_STATES]
    assert [line.partition(":")[0] for line in lines] == ["queued", "following", "cutting", end]
    if code:
        assert "error: bundles is not replaced: it is failed: a row differs; got: 1 of 2; hint: look" in text


def test_what_states_mean_is_as_in_the_docs() -> None:
    text = (PROJECT / "docs" / "operations.md").read_text()
    section = text.partition("### Replace a running stream\n")[2].partition("\n#")[0]
    for state, remedy in REPLACEMENT_REMEDIES.items():
        [line] = [line for line in section.splitlines() if line.startswith(f"| {state} |")]
        assert line.split(" | ")[-1].removesuffix("|").strip() == remedy
