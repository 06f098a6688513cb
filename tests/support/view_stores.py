"""Stores of views that hold given rows, and searches in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.model.view import View
from penstock.streams import Table, Topic
from penstock.tables.topic_reader import TableDecoder
from penstock.views.api import query as view_query
from penstock.views.api.query import Search
from penstock.views.store.columns import ViewLayout
from penstock.views.store.sqlite import ViewStore

SCHEMA = "town STRING, n INT, open BOOLEAN, at TIMESTAMP, day DATE, tags MAP<STRING,STRING>, x STRUCT<y: INT>"
BY = ("town", "n", "open", "day", "tags", "at")
VIEW = View("shops", Topic("shops", compacted=True), SCHEMA, query_by=BY)


def found(store: ViewStore, where: dict[str, Any], **given: Any) -> list[str]:
    asked = Search(where=where, **given)
    query = view_query.search_sql(store.layout, asked)
    return [key for key, *_ in store.read(query.sql(), query.parameters)]


def kept(tmp_path: Path, schema: str, by: tuple[str, ...], *values: dict[str, Any]) -> ViewStore:
    """A store of records, whose keys are numbers."""
    view = View("v", VIEW.topic, schema, query_by=by)
    records: list[tuple[bytes | None, bytes | None, int, int]] = []
    records += [(str(n).encode(), json.dumps(one).encode(), 0, n) for n, one in enumerate(values)]
    taken = TableDecoder(Table(Topic("shops", compacted=True), schema=schema)).decode(records, {0: len(values)})
    assert len(taken.bad_records) == 0
    made = ViewStore(ViewLayout(view), tmp_path / "v.db")
    made.begin("id", 1, 5, {0: 0})
    made.apply(taken.rows, {0: len(values)})
    made.reached(6)
    return made
