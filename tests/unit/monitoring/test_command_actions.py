"""Commands that the page runs in processes of their own: what they say when they cannot."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli.stream_preview import _Printer
from penstock.engine.operations.stream_explanation import StreamExplanation
from penstock.engine.operations.stream_preview import PreviewBatch, PreviewPlan
from penstock.errors import CommandError
from penstock.monitoring.dashboard import command_actions
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.caches import clear_caches

pytestmark = pytest.mark.processes
ORDERS, TOTALS = Topic("orders"), Topic("totals")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a sink."""
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    clear_caches()


def test_what_the_command_refuses_is_told_in_its_words() -> None:
    said = "`penstock sinks explain nobody` failed; got: there is no sink named 'nobody'; take one of: none"
    with pytest.raises(CommandError, match=f"^{re.escape(said)}$"):
        command_actions.explained("nobody")
    with pytest.raises(CommandError, match=r"`penstock streams preview nobody .* got: there is no stream named"):
        command_actions.previewed("nobody")
    with pytest.raises(CommandError, match="`penstock sinks replay nobody --all --json` failed; got: there is no sink"):
        command_actions.replayed("nobody")


def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_actions, "JVM_TIMEOUT", 0.01)
    monkeypatch.setattr(command_actions, "REPLAY_TIMEOUT", 0.01)
    with pytest.raises(CommandError, match=r"explain tests` has not ended; got: nothing within 0\.01 s"):
        command_actions.explained("tests")
    with pytest.raises(CommandError, match="replay again: records that were written are not written twice"):
        command_actions.replayed("tests")


def test_a_preview_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    stream = Stream(
        "totals",
        "shop",
        {"orders": Input(ORDERS)},
        lambda orders: orders,
        TopicOutput(TOTALS, value="value"),
        Stateless(),
    )
    printer = _Printer(100, as_json=True)
    printer.begin(stream, PreviewPlan({"orders": 3}, StreamExplanation([("n", "bigint")], [], "it continues")))
    rows = pa.table({"key": [b"a", None], "value": [b"x" * 500, None]})
    printer.take(
        PreviewBatch({"totals": rows}, dead=1, late=2, violations={"positive": 1}, dead_examples=[(b"\xff", "no JSON")])
    )
    printer.end()
    done = subprocess.CompletedProcess((), 0, b"WARNING: of Java\n" + capsysbinary.readouterr().out, b"")
    monkeypatch.setattr(command_actions, "_run", lambda *_: done)
    preview = command_actions.previewed("totals")
    assert preview.facts["records"] == {"orders": 3}
    assert preview.facts["columns"] == [["n", "bigint"]]
    assert preview.rows == [
        {"output": "totals", "key": "a", "value": "x" * 400}, {"output": "totals", "key": None, "value": None},
    ]  # fmt: skip
    assert preview.totals == {
        "rows": 2, "dead": 1, "late": 2, "violations": {"positive": 1},
        "dead_examples": [{"value": "\\xff", "reason": "no JSON"}],
    }  # fmt: skip
