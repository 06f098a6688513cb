"""Several who ask for releases at once, and replacements of streams."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.control import Actor, ReplacementRow, tables
from penstock.errors import ReleaseRefused, ReplacementRefused
from penstock.settings import settings
from penstock.supervision import code_snapshot, released_code
from penstock.supervision import release as releases
from penstock.supervision.release_queue import MAX_WAITING, ReleaseQueue
from penstock.supervision.replacement_changes import change_replacement
from penstock.supervision.replacement_options import replacement_options
from tests.support.supervised_platform import ME, Platform
from tests.support.wait import wait_until


class Checks:
    """In place of a release: waits until it is let through, and counts how many run at once."""

    def __init__(self) -> None:
        self.through = threading.Event()
        self.ran: list[str] = []
        self.most = self._now = 0
        self.error: Exception | None = None

    def release(self, control: Any, app: str, actor: Actor, note: str = "", *, to: str = "") -> int:
        self._now += 1
        self.most = max(self.most, self._now)
        assert self.through.wait(10)
        self._now -= 1
        self.ran.append(f"{app} {to}".strip())
        if self.error:
            raise self.error
        return int(control.release("a", actor, note))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    made = Checks()
    monkeypatch.setattr(releases, "release", made.release)
    monkeypatch.setattr(code_snapshot, "disk_digest", lambda _: "as it is")
    return made


def test_five_concurrent_requests_make_one_release(p: Platform, checks: Checks) -> None:
    one = ReleaseQueue()
    asked = [one.ask(p.control, "a", Actor(f"person {n}", "page"), "now") for n in range(5)]
    checks.through.set()
    assert {f.result(10) for f in asked} == {1}
    assert checks.ran == ["a"]
    people = {f"person {n}" for n in range(5)}
    wait_until(lambda: {a["actor"] for a in p.control.actions() if a["verb"] == "release"} == people)
    assert one.ask(p.control, "a", ME).result(10) == 2, "the next one is another"


def test_a_return_to_earlier_code_joins_no_release_of_the_disk(p: Platform, checks: Checks) -> None:
    one = ReleaseQueue()
    asked = [one.ask(p.control, "a", ME, to=to) for to in ("", "1", "2", "1")]
    checks.through.set()
    assert [f.result(10) for f in asked] == [1, 2, 3, 2]
    assert checks.ran == ["a", "a 1", "a 2"]


def test_apps_are_released_one_after_the_other_and_not_too_many_wait(p: Platform, checks: Checks) -> None:
    one = ReleaseQueue()
    asked = [one.ask(p.control, f"app-{n}", ME) for n in range(MAX_WAITING)]
    with pytest.raises(ReleaseRefused, match="again in a minute"):
        one.ask(p.control, "another", ME)
    checks.through.set()
    assert [f.result(10) for f in asked] == [1, 2, 3, 4]
    assert checks.most == 1


def test_going_back_waits_for_releases_and_is_asked_once(
    p: Platform, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: Any, *given: Any) -> str:
        checks.ran.append(f"back {given[1]}")
        return "its row"

    monkeypatch.setattr(releases, "start_going_back", start)
    one, row = ReleaseQueue(), cast("ReplacementRow", SimpleNamespace(app="a", name="s"))
    first = one.ask(p.control, "a", ME)
    asked = [one.go_back(p.control, row, ME, "too slow") for _ in range(2)]
    checks.through.set()
    assert [first.result(10), *(f.result(10) for f in asked)] == [1, "its row", "its row"]
    assert checks.ran == ["a", "back s"]


def test_a_release_checks_code_that_was_mended_meanwhile(
    p: Platform, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ReleaseQueue()
    first = one.ask(p.control, "a", ME)
    monkeypatch.setattr(code_snapshot, "disk_digest", lambda _: "mended")
    second = one.ask(p.control, "a", ME)
    checks.error = ReleaseRefused("it does not load")
    checks.through.set()
    for asked in (first, second):
        with pytest.raises(ReleaseRefused, match="does not load"):
            asked.result(10)
    assert checks.ran == ["a", "a"]
    assert p.verbs() == []


def test_processes_of_a_host_check_one_app_at_a_time(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[str] = []
    most: list[int] = []

    def told(command: tuple[str, ...], *_: object) -> dict[str, Any]:
        now.append(command[0])
        most.append(len(now))
        time.sleep(0.05)
        now.pop()
        return {"names": ["s"], "streams": True, "wrong": [], "others": [], "refused": []}

    monkeypatch.setattr(releases, "_run_check", told)
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(releases.release, p.control, "a", ME) for _ in range(5)]
        assert sorted(f.result() for f in asked) == [1, 2, 3, 4, 5]
    assert set(most) == {1}


def test_a_home_that_cannot_be_written_refuses_the_release(p: Platform, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "run").write_text("")
    with pytest.raises(ReleaseRefused, match=r"a lock file cannot be written; got: .*run.*; hint: let the user"):
        releases.release(p.control, "a", ME)


OPTIONS = replacement_options()


class Code:
    """In place of the processes that read a snapshot: what they say of app `a`, and what they were asked."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.replaceable = ["s"]
        self.differing = ["s"]
        self.irreplaceable: dict[str, str] = {}

    def run_check(self, command: tuple[str, ...], *_: object) -> dict[str, Any]:
        self.commands.append(command)
        if command[0] == "penstock.catalog":
            declared = {"names": ["s", "t"], "streams": True, "replaceable": self.replaceable}
            declared["irreplaceable"] = self.irreplaceable
            return {**declared, "schemas": [], "wrong": [], "others": []}
        left = [name for name in self.differing if name != command[-1]]
        return {"refused": [f"stream {name} has state of other code" for name in left], "differing": left}


@pytest.fixture
def code(p: Platform, monkeypatch: pytest.MonkeyPatch) -> Code:
    """The code of app `a`, of which release 1 runs."""
    answers = Code()
    monkeypatch.setattr(releases, "_run_check", answers.run_check)
    p.control.release("a", ME, digest="old")
    return answers


def test_a_stream_is_replaced_by_the_code_on_the_disk(p: Platform, code: Code) -> None:
    with pytest.raises(ReleaseRefused, match=r"of other code; hint: .* `penstock streams replace s`$"):
        releases.release(p.control, "a", ME)
    assert releases.start_replacement(p.control, "a", "s", ME, OPTIONS, dry_run=True) is None
    assert p.control.open_replacement("a") is None
    request = "r" * 32
    row = releases.start_replacement(p.control, "a", "s", ME, OPTIONS, "wider", request=request)
    assert row
    assert code.commands[-1] == ("penstock.engine.checkpoint.plan_fingerprint", "a", "--except", "s")
    assert (row.previous, row.digest) == ("old", code_snapshot.disk_digest(settings().project))
    assert p.control.snapshot_archive(row.digest)
    count = len(code.commands)
    assert releases.start_replacement(p.control, "a", "s", ME, OPTIONS, request=request) == row
    with pytest.raises(ReleaseRefused, match=r"not released while a stream .*; got: the replacement of s is queued"):
        releases.release(p.control, "a", ME)
    assert len(code.commands) == count, "it is refused before anything is checked"
    p.control.move_replacement(row.id, "following")
    began = releases.cut_over(p.control, row)
    assert began
    assert began.release_seq == 2
    assert releases.undo_cut(p.control, began, "a row differs")
    assert releases.cut_over(p.control, row) is None
    assert p.verbs() == ["release", "replace", "following", "cutting", "release", "failed", "release"]


def test_what_cannot_be_replaced_is_refused(p: Platform, code: Code) -> None:
    def refused(match: str, stream: str = "s") -> None:
        with pytest.raises(ReleaseRefused, match=match):
            releases.start_replacement(p.control, "a", stream, ME, OPTIONS)
        assert p.control.replacements() == []

    refused(r"stream new has no running version.*got: app a does not run it", "new")
    code.differing = ["s", "t"]
    refused(r"got: stream t has state of other code; hint: a replacement changes one stream: leave t as before")
    code.replaceable = ["t"]
    refused(r"s cannot be replaced; got: it is no stream with topics; hint: app a declares t")
    code.irreplaceable = {"s": "it has no alias"}
    refused(r"s cannot be replaced; got: it has no alias; hint: write the new statement in another file")


def test_an_app_that_was_never_launched_has_nothing_to_replace(p: Platform) -> None:
    with pytest.raises(ReplacementRefused, match=r"no running version.*got: app a was never launched"):
        releases.start_replacement(p.control, "a", "s", ME, OPTIONS)


def test_a_stream_goes_back_to_the_code_that_it_had(p: Platform, code: Code) -> None:
    def go_back() -> ReplacementRow:
        return releases.start_going_back(p.control, "a", "s", ME, OPTIONS)

    with pytest.raises(ReplacementRefused, match=r"has no version to go back to; got: it was never replaced"):
        go_back()
    earlier = released_code.take(p.control)
    p.control.release("a", ME, digest=earlier)
    row = p.control.request_replacement("s", "a", "newer", earlier, ME, OPTIONS)
    with pytest.raises(ReleaseRefused, match="not released while a stream"):
        go_back()
    p.control.move_replacement(row.id, "following")
    p.control.begin_cut(row.id)
    p.control.move_replacement(row.id, "cut")
    back = go_back()
    assert (back.digest, back.previous, back.options["back"]) == (earlier, row.digest, True)
    assert code.commands[-1] == ("penstock.engine.checkpoint.plan_fingerprint", "a", "--except", "s")
    assert p.control.actions()[0]["detail"] == "(back to the version before)"
    p.control.move_replacement(back.id, "cancelled")
    again = go_back()
    p.control.move_replacement(again.id, "cancelled")
    p.control.move_replacement(row.id, "confirmed")
    with pytest.raises(ReplacementRefused, match=r"has no version to go back to; got: its replacement is confirmed"):
        go_back()


@pytest.fixture
def cut(p: Platform, code: Code) -> ReplacementRow:  # noqa: ARG001
    """A replacement of `s` that is cut."""
    earlier = released_code.take(p.control)
    p.control.release("a", ME, digest=earlier)
    row = p.control.request_replacement("s", "a", "newer", earlier, ME, OPTIONS)
    p.control.move_replacement(row.id, "following")
    p.control.begin_cut(row.id)
    p.control.move_replacement(row.id, "cut")
    return row


def test_what_is_confirmed_while_the_code_is_checked_is_not_gone_back_behind(
    p: Platform, cut: ReplacementRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> releases.AppNeeds:
        change_replacement(p.control, cut, "confirm", ME)
        return releases.AppNeeds([], [])

    monkeypatch.setattr(releases, "check_replacement", check)
    with pytest.raises(ReplacementRefused, match=r"s cannot go back .*; got: it is confirmed since; hint: put"):
        releases.start_going_back(p.control, "a", "s", ME, OPTIONS)
    assert p.control.open_replacement("a") is None


def test_a_replacement_by_the_same_code_that_was_cancelled_since_does_not_keep_from_going_back(
    p: Platform, cut: ReplacementRow
) -> None:
    with p.control.begin() as c:
        c.execute(tables.replacement.update().values(requested_at=cut.requested_at - 1))
    again = p.control.request_replacement("s", "a", cut.digest, cut.digest, ME, OPTIONS)
    p.control.move_replacement(again.id, "cancelled")
    assert releases.start_going_back(p.control, "a", "s", ME, OPTIONS).options["back"]


def test_what_is_gone_back_behind_is_not_confirmed(p: Platform, cut: ReplacementRow) -> None:
    releases.start_going_back(p.control, "a", "s", ME, OPTIONS)
    assert not p.control.move_replacement(cut.id, "confirmed", actor=ME)
    with pytest.raises(ReplacementRefused, match=r"cannot be confirmed; got: it is queued; hint: it must be cut"):
        change_replacement(p.control, cut, "confirm", ME)


@pytest.mark.usefixtures("cut")
def test_a_release_since_the_cut_is_not_undone(p: Platform) -> None:
    p.control.release("a", ME, digest="newest")
    with pytest.raises(ReplacementRefused, match=r"app a was released since .*; got: the code newest instead of"):
        releases.start_going_back(p.control, "a", "s", ME, OPTIONS)
