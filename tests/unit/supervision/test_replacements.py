"""The driver that builds the new version of a stream is supervised with those of the stream's app, which waits for it
at the cut."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import catalog
from penstock.control import ProgressRow, ReplacementRow
from penstock.model.declaration import replacement_app
from penstock.settings import settings
from penstock.supervision import launch, reaper, released_code
from penstock.supervision.decision.facts import Evidence, facts_of
from penstock.supervision.decision.watch import DriversWatch, supervised_apps
from penstock.supervision.lifecycle import Driver
from penstock.supervision.replacement_options import replacement_options
from penstock.supervision.supervisor import Supervisor
from tests.support.supervised_platform import ME, SLEEP, Platform

NEW = replacement_app("s")
OPTIONS = replacement_options()


def ask(p: Platform) -> ReplacementRow:
    digest = released_code.take(p.control)
    app = p.control.app("a")
    assert app
    if app.digest is None:
        p.control.release("a", ME, digest=digest)
    return p.control.request_replacement("s", "a", digest, app.digest or digest, ME, OPTIONS)


# Supervision


@pytest.fixture
def building(p: Platform) -> ReplacementRow:
    """Stream `s` has a replacement, and its driver runs the old version."""
    p.supervisor().tick()
    return ask(p)


def test_its_driver_is_launched_with_its_code_and_watched_with_that_of_the_app(
    p: Platform, building: ReplacementRow
) -> None:
    command = launch.python_command(NEW, "i")
    assert command == [sys.executable, "-m", "penstock.engine.replacement.driver", *launch.driver_arguments(NEW, "i")]
    watch = DriversWatch(p.control, "a")
    step = watch.look()
    assert (step.app, step.decision.action, step.is_due) == (NEW, "launch", True)
    supervisor = Supervisor(p.control, NEW, "one", lambda _: SLEEP)
    supervisor.tick()
    [driver] = p.control.drivers(NEW)
    assert driver.spec_hash == building.digest
    assert driver.session.alive()
    assert (watch.look().app, watch.look().is_due) == ("a", False)
    # It is adopted, killed and launched again like any other.
    p.control.disown_drivers("one")
    assert {d.owner for d in p.control.drivers()} == {""}
    supervisor.tick()
    assert [d.owner for d in p.control.drivers(NEW)] == ["one"]
    driver.session.kill()
    assert (watch.look().app, watch.look().decision.action) == (NEW, "clear")
    supervisor.tick()
    [again] = p.control.drivers(NEW)
    assert again.incarnation != driver.incarnation


def test_no_release_is_requested_for_its_driver(p: Platform, building: ReplacementRow) -> None:  # noqa: ARG001
    supervisor = Supervisor(p.control, NEW, "one", lambda _: SLEEP)
    supervisor.tick()
    [driver] = p.control.drivers(NEW)
    p.control.update_driver(driver.incarnation, state="running")
    evidence = Evidence(driver.incarnation, driver.alive_at, incomplete_for=99)
    assert supervisor.tick(evidence).why == "running"
    found = facts_of(p.control, NEW)
    assert found
    assert found.unknown_streams == []


def test_it_is_supervised_as_long_as_it_is_open(
    p: Platform, building: ReplacementRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    Supervisor(p.control, NEW, "one", lambda _: SLEEP).tick()
    assert supervised_apps(p.control, "a") == ["a", NEW]
    assert list(reaper.reap(p.control, {"a"}, ME)) == [], "no file declares its app"
    p.control.move_replacement(building.id, "cancelled", actor=ME)
    assert supervised_apps(p.control, "a") == ["a"]
    declared: Any = SimpleNamespace(apps={"a": ()}, supervised={"s": SimpleNamespace(name="s", app="a")})
    p.control.sync(declared)
    assert list(reaper.reap(p.control, {"a"}, ME)) == [], "it gets its time to drain"
    monkeypatch.setenv("PENSTOCK_DRAIN_TIMEOUT", "0.01")
    settings.cache_clear()
    time.sleep(0.05)
    [line] = reaper.reap(p.control, {"a"}, ME)
    assert f"app {NEW}" in line
    assert [d.app for d in p.control.drivers()] == ["a"]


# The driver of the app at the cut


class OneRun(Driver):
    """A driver of stream `s`, whose leases are its own."""

    def create_run(self, name: str, figures: ProgressRow) -> Any: ...

    def _owns(self, name: str) -> bool:  # noqa: ARG002
        return True


class Followed(OneRun):
    """One that a standby can follow."""

    def standby_obstacle(self) -> str:
        return ""


class Startable:
    """A run that is active once it was reconciled."""

    def __init__(self, *, active: bool = False) -> None:
        self.offsets: dict[str, dict[int, int]] = {}
        self.running = self.active = active

    def reconcile(self) -> None:
        self.running = self.active = True

    def report(self) -> ProgressRow:
        return ProgressRow("s", "a", "i", state="running" if self.active else "stopped")


def driver(p: Platform, monkeypatch: pytest.MonkeyPatch, run: Startable, kind: type[OneRun] = OneRun) -> OneRun:
    monkeypatch.setattr(catalog, "load_partial", lambda **_: (SimpleNamespace(apps={}), []))
    app = p.control.app("a")
    assert app
    one = kind("a", "i", p.control)
    one._runs, one._release = {"s": run}, app.release_seq  # type: ignore[dict-item]
    return one


def state(p: Platform, one: Driver) -> str:
    one._look()
    one._report(keep=False)
    return p.control.progress()["s"].state


@pytest.mark.parametrize("kind", [OneRun, Followed])
@pytest.mark.parametrize("end", ["cut", "failed"])
def test_a_stream_starts_when_its_cut_has_ended(
    p: Platform, monkeypatch: pytest.MonkeyPatch, end: str, kind: type[OneRun]
) -> None:
    row = ask(p)
    p.control.move_replacement(row.id, "following")
    p.control.begin_cut(row.id)
    run = Startable()
    one = driver(p, monkeypatch, run, kind)
    assert (state(p, one), run.active) == ("replacing", False)
    if end == "failed":
        p.control.undo_replacement(row.id, "a row differs")
        one._look()
        assert (one._leaving.is_set(), run.active) == (True, False), "its code is not that of the state"
        # Nor does one that was launched for it, and looks only now.
        late = driver(p, monkeypatch, run, kind)
        late._release = one._release
        late._look()
        assert (late._leaving.is_set(), run.active) == (True, False)
        one = driver(p, monkeypatch, run)
    else:
        p.control.move_replacement(row.id, "cut")
    assert (state(p, one), run.active) == ("running", True)


def test_the_driver_that_runs_the_old_version_drains_for_the_cut(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ask(p)
    run = Startable(active=True)
    one = driver(p, monkeypatch, run)
    p.control.move_replacement(row.id, "following")
    assert state(p, one) == "running"
    p.control.begin_cut(row.id)
    one._look()
    assert one._why == ("release 2", "released")


def test_the_driver_of_a_replacement_has_its_lease_and_leaves_with_it(
    p: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "load_partial", lambda **_: (SimpleNamespace(apps={}), []))
    row = ask(p)
    one = OneRun(NEW, "i", p.control)
    assert one._names == [NEW]
    app = p.control.app(NEW)
    assert app
    one._release = app.release_seq
    one._look()
    assert not one._leaving.is_set()
    p.control.move_replacement(row.id, "cancelled", actor=ME)
    one._look()
    assert one._why == ("no stream of the app is wanted", "unwanted")
