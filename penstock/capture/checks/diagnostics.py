"""Adds file, line and column of the capture's declaration to errors, those that come from the database included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import sqlglot
from sqlglot.tokenizer_core import TokenType

from penstock.capture.output.encode import EncodingError
from penstock.capture.source.base import SourceError
from penstock.errors import BrokerError, ControlError, DeclarationError, LeaseHeld, LeaseLost, PenstockError
from penstock.model.capture import Capture
from penstock.model.sql.lexer import place

# How the engines, and records here, name what they did not like.
_NAMED = re.compile(
    r"""'([^'"]+)'|"([^"' ]+)"|no such \w+: (\S+)|column (\S+) (?:does not exist|has)|no column (\S+)|^(\w+)$""",
    re.MULTILINE,
)
_AWAY = re.compile(r"connect|refused|denied|authentication|timed? ?out|gone away|unknown database", re.IGNORECASE)
# They are about no declaration.
_OTHERS = (BrokerError, ControlError, LeaseHeld, LeaseLost)


@contextmanager
def with_source_location(capture: Capture) -> Iterator[None]:
    """Add the capture, file, line and column to an error that is raised inside."""
    try:
        yield
    except _OTHERS:
        raise
    except PenstockError as e:
        if str(capture.path) not in e.what:
            _put(capture, e)
        raise


def _put(capture: Capture, e: PenstockError) -> None:
    words, what, hint = [] if "two columns" in e.what else list(_words(e)), e.what, ""
    clauses = {"KEY": capture.key, "CURSOR": (capture.cursor,)}
    clause = next((clause for clause, columns in clauses.items() if set(words).intersection(columns)), "")
    if not (found := _of_select(capture, words)):
        if clause and "column" in str(e).lower():
            what = f"{clause} names a column that is not selected"
            hint = "name it as the database shows it, capitals too"
        found = capture.at(clause or _clause(e))
    name = "" if f"capture {capture.name}" in what else f"capture {capture.name}: "
    e.restate(f"{found}: {name}{what}", hint)


def _clause(e: PenstockError) -> str:
    """What an error is about that names no column and no table."""
    if named := re.search(r"\b(KEY|CURSOR)\b", e.what):
        return named[1]
    if isinstance(e, DeclarationError) or (isinstance(e, SourceError) and _AWAY.search(str(e.got))):
        return "FROM"
    if isinstance(e, SourceError | EncodingError) or "statement" in e.what:
        return "SELECT"
    return "KEY" if "key" in e.what.lower() else "CAPTURE"


def _words(e: PenstockError) -> Iterator[str]:
    yield from getattr(e, "columns", ())
    # Behind it is where the database is.
    said = f"{e.what}\n{str(e.got).partition(' at ')[0]}"
    for found in _NAMED.finditer(said):
        yield next(word for word in found.groups() if word).strip('"').rpartition(".")[2]


def _of_select(capture: Capture, words: list[str]) -> str:
    """Where the first of some names stands in the SELECT; empty if none does."""
    line, column = map(int, capture.locations["SELECT"].split(":"))
    tokens = sqlglot.tokenize(capture.sql, capture.dialect)
    for word in words:
        for token in tokens:
            if token.text.lower() == word.lower() and token.token_type != TokenType.STRING:
                down, right = map(int, place(capture.sql, token.start).split(":"))
                return f"{capture.path}:{line + down - 1}:{right + (column - 1 if down == 1 else 0)}"
    return ""
