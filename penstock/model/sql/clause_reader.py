"""Reads a declaration of clauses in any order, then AS and a SELECT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, cast, get_args

from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import DeclarationError
from penstock.model.mask import Mask, Method
from penstock.model.sql.error_translation import in_sql
from penstock.model.sql.lexer import TokenReader

# First words of a SELECT.
SELECT_BEGINS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")


@dataclass
class ClauseReader(TokenReader):
    """What the clauses of sinks and streams have in common.

    Attributes:
        CLAUSES: The first words of all clauses.
        clause_tokens: First token of each clause; subclasses say which others there are.
        begins: Offset of the SELECT in the text.
    """

    CLAUSES: ClassVar[tuple[str, ...]] = ()

    clause_tokens: dict[str, Token] = field(default_factory=dict)
    begins: int = 0

    def _columns(self, clause: str) -> tuple[str, ...]:
        first, names = self.peek(), self.names(f"columns of {clause}")
        if len({name.lower() for name in names}) < len(names):
            raise self.error(f"{clause} names a column twice", ", ".join(names), "leave one", first)
        return names

    def _column(self, clause: str) -> str:
        """One column, in parentheses or not."""
        first, names = self.peek(), self.names(f"the column of {clause}")
        if len(names) > 1:
            raise self.error(f"{clause} has one column", ", ".join(names), "leave one", first)
        return names[0]

    def _inside(self, what: str) -> str:
        """What stands in parentheses, as it is written."""
        return self._within(what)[0]

    def _parts(self, what: str) -> list[str]:
        """What stands in parentheses between its commas."""
        text, start, commas = self._within(what)
        ends = [*(comma - start for comma in commas), len(text)]
        parts = [text[a:b].strip() for a, b in zip([0, *(end + 1 for end in ends)], ends, strict=False)]
        if not all(parts):
            raise self.error_at(f"between two commas stands {what}", "nothing", "leave the comma out", start)
        return parts

    def _within(self, what: str) -> tuple[str, int, list[int]]:
        """What stands in parentheses, where it begins, and where its own commas stand."""
        first, depth, commas = self.peek(), 1, []
        self.word("(")
        while depth:
            token = self.next("the `)` of what was opened")
            if token.token_type == TokenType.PARAMETER and token.text == "$":
                hint = "write the text in single quotation marks, or a name in the words of a clause"
                raise self.error("a dollar sign begins no text here", token.text, hint, token)
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            if depth == 1 and token.token_type == TokenType.COMMA:
                commas.append(token.start)
        start, end = first.end + 1, self.tokens[self.at - 1].start
        if not self.text[start:end].strip():
            raise self.error(f"in the parentheses stands {what}", "()", "write it", first)
        return self.text[start:end].strip(), start + _blanks(self.text[start:end]), commas

    def _expression(self, what: str) -> str:
        """SQL up to the next clause."""
        if self.is_word("AS"):
            raise self.error(f"expected {what}", "AS", "write it, or leave the clause out", self.peek())
        first = token = self.next(what)
        depth = 0
        while True:
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            if self.at >= len(self.tokens) or (depth <= 0 and self._ends_expression(token)):
                return self.text[first.start : token.end + 1]
            token = self.next(what)

    def _masks(self) -> tuple[Mask, ...]:
        """Columns between commas, each HASHED WITH or ENCRYPTED WITH a key, or DROPPED."""
        masks: list[Mask] = []
        while True:
            first = self.peek()
            column = self.name("a column")
            method = self.one_of(get_args(Method), "the mask of a column")
            key = ""
            if method == "dropped":
                if self.is_word("WITH"):
                    raise self.error("a column that is dropped has no key", "WITH", "leave it out", self.peek())
            else:
                self.word("WITH")
                key = self.name("the name of a key")
            place = self.place(first)
            try:
                mask = Mask(column, cast("Method", method), key)
            except DeclarationError as e:
                raise DeclarationError(f"{place}: {e.what}", got=e.got, hint=e.hint) from e
            object.__setattr__(mask, "location", place)
            masks.append(mask)
            if not self.is_word(","):
                return tuple(masks)
            self.at += 1

    def _ends_expression(self, last: Token) -> bool:
        word = self.peek().text.upper()
        return word in (*self.CLAUSES, "AS") and self.is_word(word) and last.token_type != TokenType.DOT

    def begins_select(self) -> bool:
        """Whether this AS stands before the SELECT, and not before the format of a topic's values."""
        following = self.tokens[self.at + 1 : self.at + 2]
        return not following or following[0].text.upper() in SELECT_BEGINS

    def select(self) -> str:
        """The SELECT as it is written, but for comments and semicolons behind its end."""
        first, text = self.behind_as()
        self.begins = first.start
        return text

    @contextmanager
    def placed(self, clause: str) -> Iterator[None]:
        """Say of what is wrong where it stands."""
        try:
            yield
        except DeclarationError as e:
            at = self.place(self.clause_tokens[clause])
            got = None if e.got is None else in_sql(str(e.got))
            raise DeclarationError(f"{at}: {in_sql(e.what)}", got=got, hint=in_sql(e.hint)) from e


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip())
