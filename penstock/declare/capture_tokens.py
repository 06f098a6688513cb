"""The words of a capture's declaration, taken one by one; what is wrong is said with file, line and column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import DeclarationError


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
        return token.token_type != TokenType.IDENTIFIER and token.text.upper() == word

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
        if not (token.token_type in (TokenType.VAR, TokenType.IDENTIFIER) or token.text.isidentifier()):
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
        place = f"{token.line}:{column_of(token)}" if token else "1:1"
        return DeclarationError(f"{self.path}:{place}: {what}", got=got, fix=fix)


def excerpt(text: str) -> str:
    return " ".join(text.split())[:60]


def column_of(token: Token) -> int:
    """Where a token begins: sqlglot says where it ends."""
    return int(token.col) - (token.end - token.start)
