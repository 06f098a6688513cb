"""Reads the tokens of a declaration in SQL; errors name file, line and column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import sqlglot
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import DeclarationError
from penstock.model.output_mode import MAX_DURATION

QUOTED = {TokenType.IDENTIFIER, TokenType.STRING, TokenType.RAW_STRING}
UNITS = {
    "MILLISECOND": timedelta(milliseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
}


def read_sql_file(path: Path) -> str:
    """The text of a declaration; raises DeclarationError if it cannot be read, or is not UTF-8."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as e:
        raise DeclarationError(f"{path} is not UTF-8", got=f"byte {e.start + 1}", hint="save it as UTF-8") from e
    except OSError as e:
        raise DeclarationError(f"{path} cannot be read", got=e.strerror, hint="make it a file that all may read") from e


def tokenize_sql(text: str, path: Path, dialect: str, quoted: str, kind: str = "") -> list[Token]:
    """The tokens of a text.

    Args:
        text: SQL.
        path: the file, for errors.
        dialect: as sqlglot names it.
        quoted: pattern of a quotation or comment that is closed.
        kind: of the declaration, if errors are to name it.

    Raises:
        DeclarationError: a quotation or comment is not closed.
    """
    try:
        return sqlglot.tokenize(text, dialect)
    except TokenError as e:
        pieces = re.compile(rf"{quoted}|(?P<open>['\"`]|/\*|\$\w*\$)", re.DOTALL)
        opened = [found.start() for found in pieces.finditer(text) if found["open"]]
        at = opened[0] if opened else len(text)
        what = "a quotation or comment is not closed"
        raise _wrong(text, path, at, what, excerpt(text[at:]), "close it", kind) from e


@dataclass
class TokenReader:
    """Reads tokens one by one.

    Attributes:
        kind: of the declaration, which has its file's name, if errors name it.
        text: the SQL.
        path: its file.
        tokens: all of them.
        at: index of the next one.
    """

    kind: ClassVar[str] = ""

    text: str
    path: Path
    tokens: list[Token]
    at: int = 0

    def peek(self) -> Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    def next(self, expected: str) -> Token:
        if self.at >= len(self.tokens):
            last = self.tokens[-1] if self.tokens else None
            raise self.error("the file ends too soon", "its end", f"write {expected}", last)
        self.at += 1
        return self.tokens[self.at - 1]

    def is_word(self, word: str) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.token_type not in QUOTED and token.text.upper() == word

    def word(self, word: str) -> None:
        token = self.next(word)
        if token.token_type in QUOTED or token.text.upper() != word:
            raise self.error(f"expected {word}", token.text, f"write {word}", token)

    def one_of(self, choices: tuple[str, ...], what: str) -> str:
        token = self.next(what)
        if token.text.lower() not in choices:
            raise self.error(f"{what} is not known", token.text, f"take one of: {', '.join(choices)}", token)
        return token.text.lower()

    def name(self, what: str) -> str:
        token = self.next(what)
        # Double quotes are for strings in MySQL, for names in PostgreSQL.
        quoted = token.token_type in QUOTED and self.text[token.start] != "'"
        # To Spark '7d' is a number with a type.
        is_number_with_type = token.token_type == TokenType.NUMBER and self._written(token) != token.text
        if not (quoted or token.token_type == TokenType.VAR or token.text.isidentifier() or is_number_with_type):
            raise self.error(f"expected {what}", token.text, "write a name; quote it if it is no plain word", token)
        parts = [self._word(token)]
        # Names of topics and connections may have a '-' or '.', which are tokens in SQL.
        while self._joined():
            parts += [self.next(what).text, self._word(self.next(what))]
        return "".join(parts)

    def _word(self, token: Token) -> str:
        """What is written from a token on without a blank: a word that begins with a number may be several tokens."""
        word, end = self._written(token), token.end
        while self.at < len(self.tokens) and token.token_type not in QUOTED:
            part = self.peek()
            if part.start > end + 1 or (part.start > end and not re.match(r"\w", self.text[part.start])):
                break
            self.at += 1
            word, end = self.text[token.start : part.end + 1], part.end
        return word

    def _written(self, token: Token) -> str:
        """A token as it is written; a quoted one without its quotation marks."""
        return token.text if token.token_type in QUOTED else self.text[token.start : token.end + 1]

    def _joined(self) -> bool:
        if not 0 < self.at < len(self.tokens) - 1:
            return False
        left, separator, right = self.tokens[self.at - 1 : self.at + 2]
        is_adjacent = left.end + 1 == separator.start and separator.end + 1 == right.start
        return separator.token_type in (TokenType.DASH, TokenType.DOT) and is_adjacent

    def names(self, what: str) -> tuple[str, ...]:
        """One name, or several in parentheses."""
        if not self.is_word("("):
            return (self.name(what),)
        self.at += 1
        names = [self.name(what)]
        while not self.is_word(")"):
            self.word(",")
            names.append(self.name(what))
        self.at += 1
        return tuple(names)

    def behind_as(self) -> tuple[Token, str]:
        """The first token after AS, and the text after AS without semicolons at its end."""
        start = self.next("AS")
        if self.at >= len(self.tokens):
            raise self.error("there is no SELECT", "the end of the file", "write it after AS", start)
        first, last = self.peek(), self.tokens[-1]
        for token in reversed(self.tokens[self.at :]):
            last = token
            if token.token_type != TokenType.SEMICOLON:
                break
        return first, self.text[first.start : last.end + 1]

    def number(self, what: str, *, zero: bool = False) -> int:
        token = self.next(what)
        written = self._written(token)
        # Python's int refuses texts of more than some thousand digits.
        if not written.isdecimal() or len(written) > 1000 or not (zero or int(written)):
            kind = "whole number" if zero else "whole number above 0"
            hint = "write a blank behind the digits" if re.match(r"\d+[A-Za-z]", written) else "write digits"
            raise self.error(f"{what} is no {kind}", written, hint, token)
        return int(written)

    def duration(self, *, zero: bool = False) -> timedelta:
        count = self.number("a duration", zero=zero)
        token = self.next("a unit of time")
        unit = UNITS.get(token.text.upper().removesuffix("S"))
        if unit is None:
            units = ", ".join(f"{name}S" for name in UNITS)
            raise self.error("this is no unit of time", token.text, f"take one of: {units}", token)
        if count > MAX_DURATION // unit:
            raise self.error("the duration is too long", str(count), "use a smaller number", token)
        return count * unit

    def place(self, token: Token) -> str:
        """File, line and column of a token."""
        return f"{self.path}:{line_and_column(self.text, token.start)}"

    def error(self, what: str, got: str, hint: str, token: Token | None) -> DeclarationError:
        return self.error_at(what, got, hint, token.start if token else 0)

    def error_at(self, what: str, got: str, hint: str, at: int) -> DeclarationError:
        """As `error`, at an offset of the text."""
        return _wrong(self.text, self.path, at, what, got, hint, self.kind)


def _wrong(text: str, path: Path, at: int, what: str, got: str, hint: str, kind: str) -> DeclarationError:
    name = f"{kind} {path.stem}: " if kind else ""
    return DeclarationError(f"{path}:{line_and_column(text, at)}: {name}{what}", got=got, hint=hint)


def excerpt(text: str) -> str:
    return " ".join(text.split())[:60]


def line_and_column(text: str, at: int) -> str:
    """Line and column of a character, both from 1."""
    return f"{text.count(chr(10), 0, at) + 1}:{at - text.rfind(chr(10), 0, at)}"


def normalized_sql(sql: str, dialect: str) -> str:
    """SQL without comments and whitespace, keywords in capitals: equal statements are equal texts."""
    return " ".join(_normalized_token(sql, token) for token in sqlglot.tokenize(sql, dialect))


def _normalized_token(sql: str, token: Token) -> str:
    written = sql[token.start : token.end + 1]
    return written.upper() if written.isidentifier() and token.token_type != TokenType.VAR else written
