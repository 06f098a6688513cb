"""The words of a capture's declaration, taken apart as the engine does that it names."""

from __future__ import annotations

import re
from pathlib import Path

from sqlglot.tokenizer_core import Token

from penstock.model.sql.lexer import tokenize_sql

DIALECTS = ("mysql", "postgres", "sqlite")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_ENGINE = re.compile(r"\bFROM\s+(\w+)", re.IGNORECASE)
# What is opened and closed, a comment's end or a backslash taken as each engine does; `open` is what has no end.
_QUOTED = {
    "mysql": r"--(?=\s|\Z)[^\n]*|\#[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`",
    "postgres": r"--[^\n]*|/\*.*?\*/|\b[eE]'(?:[^'\\]|\\.)*'|'[^']*'|\"[^\"]*\"|(?<!\w)\$(?P<tag>\w*)\$.*?\$(?P=tag)\$",
    "sqlite": r"--[^\n]*|/\*.*?\*/|'[^']*'|\"[^\"]*\"|`[^`]*`",
}


def tokens(text: str, path: Path) -> list[Token]:
    """The words of a declaration. DeclarationError if a quotation is not closed."""
    engine = _ENGINE.search(_COMMENT.sub(" ", text))
    dialect = engine[1].lower() if engine and engine[1].lower() in DIALECTS else "sqlite"
    return tokenize_sql(text, path, dialect, _QUOTED[dialect], "capture")
