"""What the page asks of sinks by processes of their own: what they say when they cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import SinkError
from penstock.monitoring.dashboard import sink_actions
from tests.support.caches import clear_caches

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a sink."""
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    clear_caches()


def test_what_the_command_refuses_is_told_in_its_words() -> None:
    said = "`penstock sinks explain nobody` failed; got: there is no sink named 'nobody'; take one of: none"
    with pytest.raises(SinkError, match=f"^{re.escape(said)}$"):
        sink_actions.explained("nobody")
    with pytest.raises(SinkError, match="`penstock sinks replay nobody --all --json` failed; got: there is no sink"):
        sink_actions.replayed("nobody")


def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_actions, "EXPLAIN_TIMEOUT", 0.01)
    monkeypatch.setattr(sink_actions, "REPLAY_TIMEOUT", 0.01)
    with pytest.raises(SinkError, match=r"explain tests` has not ended; got: nothing within 0\.01 s"):
        sink_actions.explained("tests")
    with pytest.raises(SinkError, match="replay again: records that were written are not written twice"):
        sink_actions.replayed("tests")
