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
from penstock.model.sql.lexer import line_and_column

# Names of columns and tables in error messages.
_NAMES = re.compile(
    r"""'([^'"]+)'|"([^"' ]+)"|no such \w+: (\S+)|column (\S+) (?:does not exist|has)|no column (\S+)|^(\w+)$""",
    re.MULTILINE,
)
_UNREACHABLE = re.compile(
    r"connect|refused|denied|authentication|timed? ?out|gone away|unknown database", re.IGNORECASE
)
# Errors that are not about the declaration.
_WITHOUT_LOCATION = (BrokerError, ControlError, LeaseHeld, LeaseLost)


@contextmanager
def with_source_location(capture: Capture) -> Iterator[None]:
    """Add the capture, file, line and column to an error that is raised inside."""
    try:
        yield
    except _WITHOUT_LOCATION:
        raise
    except PenstockError as e:
        if str(capture.path) not in e.what:
            _add_location(capture, e)
        raise


def _add_location(capture: Capture, e: PenstockError) -> None:
    names, what, hint = [] if "two columns" in e.what else list(_names_in(e)), e.what, ""
    clauses = {"KEY": capture.key, "CURSOR": (capture.cursor,)}
    clause, column = next(
        ((clause, column) for clause, columns in clauses.items() for column in columns if column in names), ("", "")
    )
    if not (location := _of_select(capture, names)):
        if clause and "column" in str(e).lower():
            what = f"{clause} names a column that is not selected: {column}"
            hint = "name it as the database shows it, capitals too"
        location = capture.at(clause or _clause(e))
    name = "" if f"capture {capture.name}" in what else f"capture {capture.name}: "
    e.restate(f"{location}: {name}{what}", hint)


def _clause(e: PenstockError) -> str:
    """The clause that an error is about if it names no column and no table."""
    if match := re.search(r"\b(KEY|CURSOR)\b", e.what):
        return match[1]
    if isinstance(e, DeclarationError) or (isinstance(e, SourceError) and _UNREACHABLE.search(str(e.got))):
        return "FROM"
    if isinstance(e, SourceError | EncodingError) or "statement" in e.what:
        return "SELECT"
    return "KEY" if "key" in e.what.lower() else "CAPTURE"


def _names_in(e: PenstockError) -> Iterator[str]:
    yield from getattr(e, "columns", ())
    # After ` at ` comes the URL of the database.
    text = f"{e.what}\n{str(e.got).partition(' at ')[0]}"
    for match in _NAMES.finditer(text):
        yield next(word for word in match.groups() if word).strip('"').rpartition(".")[2]


def _of_select(capture: Capture, names: list[str]) -> str:
    """The location of the first of some names in the SELECT; empty if there is none."""
    line, column = map(int, capture.locations["SELECT"].split(":"))
    tokens = sqlglot.tokenize(capture.sql, capture.dialect)
    for name in names:
        for token in tokens:
            if token.text.lower() == name.lower() and token.token_type != TokenType.STRING:
                token_line, token_column = map(int, line_and_column(capture.sql, token.start).split(":"))
                return f"{capture.path}:{line + token_line - 1}:{token_column + (column - 1 if token_line == 1 else 0)}"
    return ""
