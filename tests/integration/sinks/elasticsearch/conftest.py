from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from penstock.sinks.elasticsearch.writer import IndexWriter
from tests.support.elasticsearch import NOON, Opened, Server, output


@pytest.fixture
def opened(search: Server) -> Iterator[Opened]:
    """Opens writers; the server has no index before."""
    search.clear()
    writers: list[IndexWriter] = []

    def of(index: str = "things", now: datetime = NOON, **more: Any) -> IndexWriter:
        writers.append(IndexWriter(search.url, output(index, **more), clock=lambda: now))
        return writers[-1]

    yield of
    for writer in writers:
        writer.close()
