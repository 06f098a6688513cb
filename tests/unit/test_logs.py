"""No text that is logged or printed looks like another line, or steers a terminal."""

from __future__ import annotations

import json
import logging

import pytest
from rich.text import Text
from typer import Exit

from penstock import logs
from penstock.cli.output import clear_errors, console, echo, emit, table
from penstock.errors import PenstockError
from penstock.logs import JsonFormatter, printable
from penstock.logs import TextFormatter as Plain

FORGED = "2026-01-01T00:00:00.000Z INFO runner penstock.x: all is well"
CODES = "\x1b]0;owned\x07\x9b2J\r\x85\u2028\u2029\u202e\u2066\u200f\x7f\x00\ud800"
EVIL = f"bad {CODES}\n{FORGED}"
UNSEEN = set(CODES) - set("]0;owned2J")


def record(text: str, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("penstock.x", logging.WARNING, "", 0, "skipped %s", (text,), info)


def test_a_record_is_one_line_whatever_it_quotes() -> None:
    odd = record(EVIL)
    odd.topic = f"t\n{FORGED}"
    said = Plain("runner").format(odd)
    assert len(said.splitlines()) == 1
    assert not UNSEEN & set(said)
    assert said.count("\\n2026-01-01") == 2
    assert "\\x1b]0;owned\\x07" in said


def test_a_traceback_keeps_its_lines_and_none_begins_a_record() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as e:
        said = Plain("runner").format(record("it", e))
    first, *more = said.split("\n")
    assert first.endswith("WARNING runner penstock.x: skipped it")
    assert more[0] == "    Traceback (most recent call last):"
    assert more[-1] == f"    {FORGED}"
    assert all(line.startswith("    ") for line in more)
    assert not UNSEEN & set(said)


def test_json_holds_the_text_as_it_is_and_no_such_character() -> None:
    said = JsonFormatter("runner").format(record(EVIL + " ä"))
    assert json.loads(said)["message"] == f"skipped {EVIL} ä"
    assert not UNSEEN & set(said)
    assert "\n" not in said
    assert "ä" in said


@pytest.mark.parametrize("client", ["httpx", "httpx2"])
def test_requests_of_http_are_not_logged(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of Penstock nor those of the client of schema registries."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    logs.setup("runner")
    assert not logging.getLogger(client).isEnabledFor(logging.INFO)


def test_data_is_printed_as_it_is_and_without_such_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    text = EVIL.replace("\ud800", "")  # which no JSON of orjson's can hold
    emit({"why": [text, "ä"]})
    said = capsys.readouterr().out
    assert json.loads(said) == {"why": [text, "ä"]}
    assert not UNSEEN & set(said)
    assert len(said.splitlines()) == 6


def test_what_people_write_stays_as_it_is() -> None:
    for text in ("Größe\t12 µs", "数え", "🚰 [x] {y} \\n"):
        assert printable(text) == text


def test_what_is_printed_is_neither_markup_nor_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    made = table(["name", "why"])
    made.add_row("[/x] :smile: [red]", Text(EVIL))
    console().print(made)
    console().print(EVIL)
    echo(EVIL)
    with pytest.raises(Exit), clear_errors():
        raise PenstockError("refused", got=EVIL)
    out, err = capsys.readouterr()
    assert "[/x] :smile: [red]" in out
    assert not UNSEEN & set(out + err)
    assert out.count("\\x1b]0;owned") == 3
    assert "\\x9b2J" in err
