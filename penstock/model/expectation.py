"""Expectations of a stream: rules that each row is checked against, and what happens to a row that violates one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.checks.predicates import parse_predicate, predicate_columns
from penstock.model.declaration import MAX_NAME_LENGTH, caller_location

OnViolation = Literal["keep", "dead letter", "fail"]
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Expectation:
    """A rule of the rows of a stream.

    Attributes:
        name: Unique in the stream, an identifier; names the rule in counts and in the reasons of dead letters.
        predicate: A boolean expression of Spark SQL over the columns of the stream's rows. A row violates the rule if
            it is false or NULL.
        on_violation: `keep` writes the row and counts the violation. `dead letter` makes the row a dead letter in the
            transaction of its batch. `fail` writes nothing of the batch and blocks the stream.
        location: Where it is declared.

    Raises:
        DeclarationError: The name is no identifier, or the predicate is no predicate over one row.
    """

    name: str
    predicate: str
    on_violation: OnViolation
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_kind("an expectation", "name", self.name, str)
        check_kind(f"expectation {self.name}", "predicate", self.predicate, str)
        if not IDENTIFIER.fullmatch(self.name) or len(self.name) > MAX_NAME_LENGTH:
            raise DeclarationError(
                f"the name of expectation {self.name!r} is not usable",
                hint=f"use letters, digits and _, without a digit in front, {MAX_NAME_LENGTH} at most",
            )
        if self.on_violation not in get_args(OnViolation):
            raise DeclarationError(
                f"expectation {self.name}: on_violation is not known",
                got=repr(self.on_violation),
                hint=f"use one of: {', '.join(get_args(OnViolation))}",
            )
        parse_predicate(f"expectation {self.name}", self.predicate)

    @property
    def text(self) -> str:
        """The predicate in one line, for messages; a long one is cut."""
        return " ".join(self.predicate.split())[:200]

    @property
    def columns(self) -> list[str]:
        """The columns that the predicate names, in lower case."""
        return predicate_columns(parse_predicate(f"expectation {self.name}", self.predicate))
