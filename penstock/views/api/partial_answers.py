"""Requests to other instances for parts of an answer, and merging the parts of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from penstock.views.api import query as view_query
from penstock.views.api.freshness import RequestContext
from penstock.views.api.query import PartialCounts, PartialSearch, Search, ViewQuery
from penstock.views.runner import ViewRun


def view_path(view: str, what: str, context: RequestContext) -> str:
    age = "" if context.max_age_ms is None else f"?max_age_ms={context.max_age_ms}"
    return f"/v1/views/{quote(view, safe='')}/{what}{age}"


def partial_query(
    run: ViewRun, part: type[PartialSearch | PartialCounts], query: ViewQuery
) -> Callable[[list[int]], bytes]:
    """The body with which another instance is asked for some partitions, without fields at their defaults."""
    fields = query.model_dump(exclude_defaults=True)

    def body(partitions: list[int]) -> bytes:
        one = part.model_construct(**fields, partitions=partitions, store=run.layout.version)
        return one.model_dump_json(exclude_defaults=True).encode()

    return body


def merge_page(parts: Sequence[Mapping[str, Any]], query: Search) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a page, and whether there are more. A part that was cut bounds the rows of all parts."""

    def sort_key(row: Mapping[str, Any]) -> tuple[Any, str]:
        return (row["at"] if query.order != view_query.KEY else 0, row["key"])

    rows = sorted((row for part in parts for row in part["rows"]), key=sort_key, reverse=query.descending)
    ends = [sort_key(part["rows"][-1]) for part in parts if part["cut"] and part["rows"]]
    more = bool(ends) or len(rows) > query.limit
    if ends:
        end = max(ends) if query.descending else min(ends)
        rows = [row for row in rows if (sort_key(row) >= end if query.descending else sort_key(row) <= end)]
    return rows[: query.limit], more
