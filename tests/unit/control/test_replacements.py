"""Replacements in the control database: one of an app, each step once, and the release that the cut makes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import update

from penstock.control import Actor, Control, ReplacementRow, tables
from penstock.control.repositories import releases
from penstock.control.repositories.apps import DeclaredApps
from penstock.errors import DeclarationError, ReleaseRefused, ReplacementRefused
from penstock.model.declaration import check_name, replaced_stream, replacement_app
from tests.support.control_tables import create_tables

ME = Actor("me", "cli")
OPTIONS = {"from": None, "rate": None, "write": "differing", "expect": None, "cut": "auto", "in_place": False}
DECLARED = cast(
    "DeclaredApps",
    SimpleNamespace(apps={"a": ()}, supervised={name: SimpleNamespace(name=name, app="a") for name in ("s", "t")}),
)
NOTHING = cast("DeclaredApps", SimpleNamespace(apps={}, supervised={}))


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """App `a` with the streams `s` and `t`, whose code is `old`."""
    made = Control(f"sqlite:///{tmp_path / 'control.db'}")
    create_tables(made)
    made.sync(DECLARED)
    made.release("a", ME, digest="old")
    yield made
    made.engine.dispose()


def ask(control: Control, name: str = "s", previous: str = "old", request: str = "") -> ReplacementRow:
    return control.request_replacement(name, "a", "new", previous, ME, OPTIONS, request)


def released(control: Control) -> tuple[int, str | None]:
    app = control.app("a")
    assert app
    return app.release_seq, app.digest


def verbs(control: Control) -> list[str]:
    return [action["verb"] for action in reversed(control.actions())]


def test_the_app_of_a_replacement_is_none_that_can_be_declared() -> None:
    assert replaced_stream(replacement_app("s")) == "s"
    assert replaced_stream("s") is None
    with pytest.raises(DeclarationError, match="not usable"):
        check_name("stream", replacement_app("s"))


def test_a_replacement_has_an_app_with_its_code_and_is_in_no_list(control: Control) -> None:
    row = ask(control)
    assert (row.name, row.app, row.state, row.digest, row.previous) == ("s", "a", "queued", "new", "old")
    assert (row.options, row.figures, row.actor, row.why) == (OPTIONS, {}, "me", "")
    assert control.replacement(row.id) == control.open_replacement("a") == control.replacement_of("s") == row
    own = control.app("replacement:s")
    assert own
    assert own.digest == "new"
    assert control.desired("replacement:s") == {"replacement:s": "on"}
    assert [app.name for app in control.apps()] == ["a"]
    assert control.desired().keys() == control.stream_progress()[1].keys() == {"s", "t"}
    assert control.supervised().keys() == {"a"}
    control.sync(DECLARED)
    assert control.app("replacement:s"), "it is not declared, but wanted"
    assert control.move_replacement(row.id, "cancelled", actor=ME)
    assert control.desired("replacement:s") == {"replacement:s": "off"}
    control.sync(DECLARED)
    assert control.app("replacement:s") is None
    assert control.open_replacement("a") is None
    assert verbs(control) == ["release", "replace", "cancelled"]


def test_it_ends_with_its_app(control: Control) -> None:
    ask(control)
    control.sync(NOTHING)
    assert control.desired("replacement:s") == {}, "its driver leaves"


@pytest.mark.parametrize("forget", [True, False])
def test_it_goes_on_when_its_app_is_declared_again(control: Control, forget: bool) -> None:
    ask(control)
    control.sync(NOTHING)
    control.sync(DECLARED, forget=forget)
    assert control.desired("replacement:s") == {"replacement:s": "on"}
    assert control.app("replacement:s")


def test_it_fails_when_its_app_is_forgotten(control: Control) -> None:
    row = ask(control)
    control.sync(NOTHING)
    with control.begin() as c:
        for table in (tables.app, tables.stream):
            c.execute(update(table).values(absent_since=1))
    control.sync(NOTHING)
    ended = control.replacement(row.id)
    assert ended
    assert (ended.state, ended.why) == ("failed", "app a is not declared any more")
    control.sync(DECLARED)
    assert control.release("a", ME, digest="later") == 1, "it is no obstacle"


def test_an_app_has_one_open_replacement_and_no_release_meanwhile(control: Control) -> None:
    first = ask(control)
    for name in ("s", "t"):
        with pytest.raises(ReplacementRefused, match=r"the replacement of s, requested by me, is queued.*cancel s"):
            ask(control, name)
    with pytest.raises(ReleaseRefused, match=r"of s is queued.*penstock replacements show s"):
        control.release("a", ME, digest="other")
    control.move_replacement(first.id, "cancelled", actor=ME)
    assert control.release("a", ME, digest="other") == 2
    with pytest.raises(ReplacementRefused, match=r"released while.*the code other instead of old"):
        ask(control)
    number = control.app("replacement:s")
    second = ask(control, previous="other")
    assert second.id != first.id
    again = control.app("replacement:s")
    assert number
    assert again
    assert again.release_seq == number.release_seq + 1, "the driver of the first one drains"


def test_a_request_is_done_once_and_of_many_at_once_one_wins(control: Control) -> None:
    request = "r" * 32
    assert ask(control, request=request) == ask(control, request=request)
    assert verbs(control).count("replace") == 1
    assert control.move_replacement(request, "cancelled")

    def attempt(n: int) -> str:
        try:
            return ask(control, ("s", "t")[n % 2]).id
        except ReplacementRefused:
            return ""

    with ThreadPoolExecutor(8) as pool:
        started = [identity for identity in pool.map(attempt, range(16)) if identity]
    assert len(started) == 1
    assert [row.id for row in control.replacements() if row.is_open] == started


def test_a_name_that_leaves_no_room_for_the_app_is_refused(control: Control) -> None:
    with pytest.raises(ReplacementRefused, match=r"109 characters.*108 characters at most"):
        ask(control, "s" * 109)
    assert control.replacements() == []


def test_a_state_is_reached_from_the_one_before_alone(control: Control) -> None:
    row = ask(control)
    assert not control.move_replacement(row.id, "cut")
    assert not control.move_replacement(row.id, "building", of=("following",))
    assert control.move_replacement(row.id, "building", why="reads")
    assert not control.move_replacement(row.id, "building")
    control.report_replacement(row.id, figures={"records": 3, "examples": [{"key": "k\0"}], "rate": float("nan")})
    control.report_replacement(row.id, why="waits")
    now = control.replacement(row.id)
    assert now
    assert (now.why, now.figures) == ("waits", {"records": 3, "examples": [{"key": "k"}], "rate": None})
    assert control.request_cut(row.id, ME)
    assert control.move_replacement(row.id, "following")
    assert control.begin_cut(row.id)
    assert not control.request_cut(row.id, ME)
    assert not control.move_replacement(row.id, "cancelled", actor=ME), "the cut has begun"
    assert control.move_replacement(row.id, "cut", figures={"pause_ms": 5})
    assert control.desired("replacement:s") == {"replacement:s": "off"}
    assert control.move_replacement(row.id, "confirmed", actor=ME, why="it is right")
    # Its driver, which is at work until it looks again, does not take away why it has ended.
    control.report_replacement(row.id, why="", figures={"pause_ms": 6})
    control.report_replacement(row.id, why="the store is away")
    ended = control.replacement(row.id)
    assert ended
    assert (ended.why, ended.figures) == ("it is right", {"pause_ms": 5})
    assert ended.cut_requested_at
    assert ended.cut_at
    assert ended.ended_at
    steps = ["replace", "building", "cut", "following", "cutting", "release", "cut", "confirmed"]
    assert verbs(control)[1:] == steps
    by = {action["verb"]: action["actor"] for action in control.actions()}
    assert (by["building"], by["confirmed"]) == ("replacement:s", "me")


def test_the_cut_releases_the_new_code_once_and_its_undoing_the_old(control: Control) -> None:
    row = ask(control)
    assert control.begin_cut(row.id) is None, "it has not caught up"
    control.move_replacement(row.id, "following")
    first, again = control.begin_cut(row.id), control.begin_cut(row.id)
    assert first
    assert first == again
    assert (first.state, first.release_seq) == ("cutting", 2)
    assert released(control) == (2, "new")
    assert control.undo_replacement(row.id, "a row differs")
    assert not control.undo_replacement(row.id, "a row differs")
    assert released(control) == (3, "old")
    undone = control.replacement(row.id)
    assert undone
    assert (undone.state, undone.why) == ("failed", "a row differs")
    assert [release.note for release in control.releases("a")][:2] == [
        "replacement of s undone: a row differs", "replacement of s",
    ]  # fmt: skip


def test_one_that_is_cut_is_confirmed_by_the_next_that_is_cut(control: Control) -> None:
    def cut(row: ReplacementRow) -> ReplacementRow:
        control.move_replacement(row.id, "following")
        control.begin_cut(row.id)
        control.move_replacement(row.id, "cut")
        return row

    first = cut(ask(control))
    cancelled = ask(control, previous="new")
    control.move_replacement(cancelled.id, "cancelled", actor=ME)
    states = {first.id: "cut", cancelled.id: "cancelled"}
    assert {one.id: one.state for one in control.replacements()} == states, "one that is cancelled confirms nothing"
    second = cut(ask(control, previous="new"))
    states |= {first.id: "confirmed", second.id: "cut"}
    assert {one.id: one.state for one in control.replacements()} == states


def test_before_the_cut_nothing_was_released_that_is_undone(control: Control) -> None:
    row = ask(control)
    assert control.undo_replacement(row.id, "it cannot be built")
    assert released(control) == (1, "old")


def test_the_code_of_both_versions_is_kept(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "UNUSED_MS", -1000)
    for digest in ("old", "new", "other"):
        control.store_snapshot(digest, b"x")
    row = ask(control)
    with control.begin() as c:
        c.execute(update(tables.release).values(digest=None))
    assert control.prune_releases("a", 20) == {"old", "new"}
    control.move_replacement(row.id, "cancelled", actor=ME)
    assert control.prune_releases("a", 20) == set()
