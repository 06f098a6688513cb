"""The words of a capture's declaration, taken one by one; what is wrong is said with file, line and column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import sqlglot
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import DeclarationError

DIALECTS = ("mysql", "postgres", "sqlite")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_ENGINE = re.compile(r"\bFROM\s+(\w+)", re.IGNORECASE)
# What is opened and closed, a comment's end or a backslash taken as each engine does; `open` is what has no end.
_QUOTED = {
    "mysql": r"--(?=\s|\Z)[^\n]*|\#[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`",
    "postgres": r"--[^\n]*|/\*.*?\*/|\b[eE]'(?:[^'\\]|\\.)*'|'[^']*'|\"[^\"]*\"|(?<!\w)\$(?P<tag>\w*)\$.*?\$(?P=tag)\$",
    "sqlite": r"--[^\n]*|/\*.*?\*/|'[^']*'|\"[^\"]*\"|`[^`]*`",
}


QUOTED = {TokenType.IDENTIFIER, TokenType.STRING}


def tokens(text: str, path: Path) -> list[Token]:
    """The words of a declaration, taken apart as its engine does. DeclarationError if a quotation is not closed."""
    engine = _ENGINE.search(_COMMENT.sub(" ", text))
    dialect = engine[1].lower() if engine and engine[1].lower() in DIALECTS else "sqlite"
    try:
        return sqlglot.tokenize(text, dialect)
    except TokenError as e:
        pieces = re.compile(rf"{_QUOTED[dialect]}|(?P<open>['\"`]|/\*|\$\w*\$)", re.DOTALL)
        opened = [found.start() for found in pieces.finditer(text) if found["open"]]
        at = opened[0] if opened else len(text)
        raise DeclarationError(
            f"{path}:{place(text, at)}: a quotation or comment is not closed", got=excerpt(text[at:]), fix="close it"
        ) from e


@dataclass
class Tokens:
    """at: the number of the next token."""

    text: str
    path: Path
    tokens: list[Token]
    at: int = 0

    def peek(self) -> Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    def next(self, wanted: str) -> Token:
        if self.at >= len(self.tokens):
            last = self.tokens[-1] if self.tokens else None
            raise self.error("the file ends too soon", "its end", f"say {wanted}", last)
        self.at += 1
        return self.tokens[self.at - 1]

    def is_word(self, word: str) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.token_type not in QUOTED and token.text.upper() == word

    def word(self, word: str) -> None:
        token = self.next(word)
        if token.text.upper() != word:
            raise self.error(f"here stands {word}", token.text, f"write {word}", token)

    def one_of(self, words: tuple[str, ...], what: str) -> str:
        token = self.next(what)
        if token.text.lower() not in words:
            raise self.error(f"{what} is not known", token.text, f"take one of: {', '.join(words)}", token)
        return token.text.lower()

    def name(self, what: str) -> str:
        token = self.next(what)
        parts = [token.text]
        # MySQL takes what stands in double quotes for text, PostgreSQL for a name.
        quoted = token.token_type in QUOTED and self.text[token.start] != "'"
        if not (quoted or token.token_type == TokenType.VAR or token.text.isidentifier()):
            raise self.error(f"here stands {what}", token.text, "write a name; quote it if it is no plain word", token)
        # Topics and connections may have a '-' or '.', which SQL takes apart.
        while self._joined():
            parts += [self.next(what).text, self.next(what).text]
        return "".join(parts)

    def _joined(self) -> bool:
        if not 0 < self.at < len(self.tokens) - 1:
            return False
        before, sign, behind = self.tokens[self.at - 1 : self.at + 2]
        touching = before.end + 1 == sign.start and sign.end + 1 == behind.start
        return sign.token_type in (TokenType.DASH, TokenType.DOT) and touching

    def names(self, what: str) -> tuple[str, ...]:
        """One name, or several in parentheses."""
        if not self.is_word("("):
            return (self.name(what),)
        self.at += 1
        found = [self.name(what)]
        while not self.is_word(")"):
            self.word(",")
            found.append(self.name(what))
        self.at += 1
        return tuple(found)

    def number(self, what: str) -> int:
        token = self.next(what)
        if not token.text.isdecimal() or not int(token.text):
            raise self.error(f"{what} is no whole number above 0", token.text, "write digits", token)
        return int(token.text)

    def error(self, what: str, got: str, fix: str, token: Token | None) -> DeclarationError:
        return self.error_at(what, got, fix, token.start if token else 0)

    def error_at(self, what: str, got: str, fix: str, at: int) -> DeclarationError:
        """As `error`, of the character of that number."""
        return DeclarationError(f"{self.path}:{place(self.text, at)}: {what}", got=got, fix=fix)


def excerpt(text: str) -> str:
    return " ".join(text.split())[:60]


def place(text: str, at: int) -> str:
    """Line and column of a character, both from 1."""
    return f"{text.count(chr(10), 0, at) + 1}:{at - text.rfind(chr(10), 0, at)}"


def spelled(sql: str, dialect: str) -> str:
    """SQL without its comments and blanks, words that are no names in capitals: the same says the same."""
    return " ".join(_spelled(sql, token) for token in sqlglot.tokenize(sql, dialect))


def _spelled(sql: str, token: Token) -> str:
    written = sql[token.start : token.end + 1]
    return written.upper() if written.isidentifier() and token.token_type != TokenType.VAR else written
