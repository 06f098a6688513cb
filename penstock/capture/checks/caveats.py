"""Sentences for `capture explain` about the limits of a capture's guarantees by its statement."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from penstock.capture.checks.introspection import StatementInfo
from penstock.model.capture import Capture
from penstock.model.sql.lexer import excerpt

DELIVERY = "a committed change is in the topic a poll later"
REMOVAL = "what the SELECT no longer gives is no longer in the topic"
DEDUP = "a row that did not change is written once"
COST = "a poll costs what changed"
UNTIL = "until the next reconcile"


def statement_caveats(capture: Capture) -> Iterator[str]:
    """Yields a sentence for each limit by the statement itself."""
    dialect = capture.dialect
    for table in _other_tables(capture):
        yield (
            f"{DELIVERY}: not a change in {table} alone, {UNTIL}; if that is too long, let CURSOR be the "
            "later one of both "
            "tables' cursors, or capture each table by itself"
        )
    if condition_node := capture.select.args.get("where"):
        condition = excerpt(condition_node.this.sql(dialect))
        yield (
            f"{REMOVAL}: not a row that no longer meets the WHERE, {UNTIL}; with DELETED WHEN (({condition}) "
            "IS NOT TRUE) "
            "in its place, over columns that are selected, it leaves at once"
        )
    if capture.deleted is None:
        yield (
            f"{REMOVAL}: not a row that is deleted, {UNTIL}; mark rows in place of deleting them, and say DELETED WHEN"
        )


def table_caveats(capture: Capture, info: StatementInfo) -> Iterator[str]:
    """Yields a sentence for each limit by the views, columns and functions of the database."""
    for view, kind in info.views.items():
        if kind == "MATERIALIZED VIEW":
            yield (
                f"{DELIVERY}: not what REFRESH brings into {view} with a cursor that lies behind the last "
                f"poll, {UNTIL}; "
                "select from its tables"
            )
        else:
            yield f"{DELIVERY}: not a change in the view {view} that leaves {capture.cursor} as it was, {UNTIL}"
    for view in info.unknown:
        yield f"{DEDUP}: the text of view {view} cannot be parsed, so volatile expressions in it are not found"
    for column in info.generated:
        yield (
            f"{DELIVERY}: {column} is generated, and an ALTER of how changes rows without their cursor: then "
            f"`penstock capture reconcile {capture.name}`"
        )
    for name in info.functions:
        yield (
            f"{DEDUP}, and {COST}: {name}(…) may say another thing at each call, as it is declared; if it does not, "
            f"declare it {'DETERMINISTIC' if capture.dialect == 'mysql' else 'IMMUTABLE or STABLE'}"
        )
    for table in info.elsewhere:
        yield (
            f"{DELIVERY}: {table} is in another server, whose transactions cannot be seen; what is open there "
            "for longer "
            f"than OVERLAP may be missed, {UNTIL}"
        )


def _other_tables(capture: Capture) -> list[str]:
    """The tables that do not have the cursor; all but the first if the cursor's table is unknown."""
    select = capture.select
    sources = {e.alias_or_name: e for e in select.expressions if not e.is_star}
    cursor = sources.get(capture.cursor)
    aliases = {column.table for column in cursor.find_all(exp.Column)} if cursor else set[str]()
    tables = [table for table in select.find_all(exp.Table) if table.name]
    own_aliases = {table.alias_or_name for table in tables[:1]} if aliases in (set(), {""}) else aliases
    return list(dict.fromkeys(table.name for table in tables if table.alias_or_name not in own_aliases))
