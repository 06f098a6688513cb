"""The number of rows of a page, so that it fits into memory whatever their size."""

from __future__ import annotations

from typing import ClassVar

from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import SourceDatabase, SourcePage


class PageSize:
    """Adapts the number of rows to their size.

    A page that is too large ends with the last row that fits, and the next pages have fewer rows until rows get small,
    since an engine sends all rows of a query. Numbers are halves of `most` or powers of two, to keep the number of
    different queries small.

    Attributes:
        most: Rows of a page of small rows.
        rows: Rows of the next page.
    """

    # Maximum bytes of a page; a larger row is a page of its own. The records of a page need a multiple of it.
    BYTES: ClassVar[int] = 16 * 1024 * 1024

    def __init__(self, most: int) -> None:
        self.most = self.rows = most

    def read(self, database: SourceDatabase, query: SourceQuery) -> SourcePage:
        """Read a page, or its first rows, and adapt the size of the next one."""
        page = database.page(query, None if query.limit == 1 else self.BYTES)
        if page.cut:
            self.rows = 1 << (len(page.rows).bit_length() - 1)
        elif len(page.rows) >= self.rows and 2 * page.weight <= self.BYTES:
            self.rows = min(self.most, 2 * self.rows)
        return page
