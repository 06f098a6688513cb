"""sqlglot's parser, whose errors are all of one kind: on some statements it fails by an assertion or the like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError


@contextmanager
def _one_kind_of_error() -> Iterator[None]:
    try:
        yield
    except SqlglotError:
        raise
    except Exception as e:
        raise ParseError("this cannot be parsed") from e


def parse_one(text: str, dialect: str, into: type[exp.Expr] | None = None) -> exp.Expr:
    """The syntax tree of a statement or expression.

    Raises:
        SqlglotError: It cannot be parsed.
    """
    with _one_kind_of_error():
        return sqlglot.parse_one(text, read=dialect, into=into)


def parse_all(text: str, dialect: str) -> list[exp.Expr | None]:
    """The syntax trees of statements; raises as `parse_one`."""
    with _one_kind_of_error():
        return sqlglot.parse(text, read=dialect)
