"""Pages of rows, and search in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

PAGE = 100


@dataclass(frozen=True)
class Pages:
    """Which page of how many, counted from 1.

    Attributes:
        matching: Rows on all pages.
        total: Rows without the search.
    """

    page: int
    pages: int
    matching: int
    total: int

    @classmethod
    def of(cls, page: int, matching: int, total: int | None = None) -> Pages:
        """A page of rows; the last one if there are not so many."""
        pages = max(1, -(-matching // PAGE))
        return cls(min(page, pages), pages, matching, matching if total is None else total)

    @property
    def offset(self) -> int:
        """Rows before the page."""
        return (self.page - 1) * PAGE


@dataclass(frozen=True)
class PageOfRows(Generic[T]):
    rows: Sequence[T]
    pages: Pages


def search(rows: Sequence[T], q: str, page: int, texts: Callable[[T], Sequence[str | None]]) -> PageOfRows[T]:
    """A page of the rows that have a text.

    Args:
        rows: The rows.
        q: A part of a text, of any case; empty for all rows.
        page: Counted from 1.
        texts: Of a row.
    """
    wanted = q.strip().casefold()
    matching = (
        [row for row in rows if any(wanted in (text or "").casefold() for text in texts(row))] if wanted else rows
    )
    pages = Pages.of(page, len(matching), len(rows))
    return PageOfRows(matching[pages.offset : pages.offset + PAGE], pages)
