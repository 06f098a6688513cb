"""What declarations in SQL have in common: places in their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import DeclarationError
from penstock.model.declaration import moved_location


class SqlDeclaration:
    """A declaration of clauses and a SELECT.

    Attributes:
        path: Its file.
        sql: The SELECT as written.
        locations: Line and column of each clause and of the SELECT.
    """

    path: Path
    sql: str
    locations: Mapping[str, str]

    def at(self, clause: str) -> str:
        """File, line and column of a clause, or of the `SELECT`; of the beginning where there is none of it."""
        return f"{self.path}:{self.locations.get(clause, self.locations['INTO'])}"

    def select_location(self, at: int) -> str:
        """File, line and column of a character of the SELECT as Spark gets it."""
        return moved_location(self.at("SELECT"), self.sql, self.written_offset(at))

    def written_offset(self, at: int) -> int:
        """The offset in the SELECT as written of one in the SELECT as Spark gets it."""
        return at

    @contextmanager
    def located(self, clause: str) -> Iterator[None]:
        """Say of what is wrong in which clause it stands."""
        try:
            yield
        except DeclarationError as e:
            raise DeclarationError(f"{self.at(clause)}: {e.what}", got=e.got, hint=e.hint) from e
