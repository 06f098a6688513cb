"""How many rows a page has, so that it fits into memory whatever they weigh."""

from __future__ import annotations

from typing import ClassVar

from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import SourceDatabase, SourcePage


class PageSize:
    """most: rows of a page, if they are light; rows: of the next one.

    A page that is too heavy ends with the last row that fits, and what follows has fewer rows until they are lighter:
    an engine sends what is asked for, wanted or not. Rows are halves of `most` or powers of two, for each makes a query
    of its own.
    """

    # Bytes of a page at most; a row that is heavier is a page. All that is made of a page weighs some times as much.
    BYTES: ClassVar[int] = 16 * 1024 * 1024

    def __init__(self, most: int) -> None:
        self.most = self.rows = most

    def read(self, database: SourceDatabase, query: SourceQuery) -> SourcePage:
        """A page, or its first rows. What it weighs decides how many the next one has."""
        page = database.page(query, None if query.limit == 1 else self.BYTES)
        if page.cut:
            self.rows = 1 << (len(page.rows).bit_length() - 1)
        elif len(page.rows) >= self.rows and 2 * page.weight <= self.BYTES:
            self.rows = min(self.most, 2 * self.rows)
        return page
