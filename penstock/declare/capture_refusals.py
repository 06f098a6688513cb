"""What no capture may hold, as a page would then be other than rows of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.declare.capture_clauses import Clauses

if TYPE_CHECKING:
    from penstock.declare.capture import Capture

# With so many arguments they speak of those alone.
AT_LEAST = {"UNIX_TIMESTAMP": 1, "UNIXEPOCH": 1, "AGE": 2, "USER": 1}
# What would make a page of rows other than the rows themselves, by the argument of sqlglot's Select.
REFUSED = {
    "with_": "WITH",
    "distinct": "DISTINCT",
    "group": "GROUP BY",
    "having": "HAVING",
    "windows": "WINDOW",
    "qualify": "QUALIFY",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "locks": "FOR UPDATE",
    "into": "INTO",
}
# What says another thing at each call, by the name sqlglot or the engine gives it.
MOMENTARY = {
    "NOW", "SYSDATE", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_DATETIME", "CURDATE", "CURTIME",
    "LOCALTIME", "LOCALTIMESTAMP", "UTC_TIMESTAMP", "UTC_DATE", "UTC_TIME", "UNIX_TIMESTAMP", "UNIXEPOCH",
    "CLOCK_TIMESTAMP", "STATEMENT_TIMESTAMP", "TRANSACTION_TIMESTAMP", "TIMEOFDAY", "AGE",
    "RAND", "RANDOM", "RANDN", "UUID", "UUID_SHORT", "GEN_RANDOM_UUID", "NEWID",
    "CURRENT_USER", "SESSION_USER", "USER", "SYSTEM_USER", "CONNECTION_ID", "LAST_INSERT_ID", "ROW_COUNT",
    "FOUND_ROWS", "NEXTVAL", "SETVAL", "LASTVAL", "SLEEP", "PG_SLEEP", "CHANGES", "TOTAL_CHANGES",
    "TXID_CURRENT", "PG_BACKEND_PID",
}  # fmt: skip


def check(capture: Capture, clauses: Clauses) -> None:
    """DeclarationError if pages of the capture would not be rows of its table. clauses: as they were read."""
    select, start = capture.select, clauses.peek()
    for argument, name in REFUSED.items():
        if select.args.get(argument):
            fix = "select the rows as they are: one per key, in no order"
            raise clauses.error(f"a capture cannot page through {name}", name, fix, start)
    for node in (*select.walk(), *(capture.deleted.walk() if capture.deleted else ())):
        if isinstance(node, exp.AggFunc | exp.Window):
            raise clauses.error("a capture has no aggregates", node.sql(capture.dialect), "leave it out", start)
        if _momentary(node):
            fix = "leave it out: each poll would take every row for a changed one"
            raise clauses.error("this says another thing at each poll", node.sql(capture.dialect), fix, start)
        if isinstance(node, exp.Placeholder | exp.Parameter):
            raise clauses.error("a capture has no parameters", node.sql(capture.dialect), "write the value", start)
    if capture.delay >= capture.hold:
        fix = "a transaction is waited for as long as HOLD says at most: make it longer than DELAY"
        raise clauses.error("DELAY is not shorter than HOLD", f"{capture.delay} and {capture.hold}", fix, start)
    if capture.columns is not None:
        _check_columns(capture, capture.columns, clauses)


def _check_columns(capture: Capture, columns: list[str], clauses: Clauses) -> None:
    known = ", ".join(columns)
    if "" in columns or len(set(columns)) < len(columns):
        fix = "give each column of the SELECT a name of its own, by AS"
        raise clauses.error("columns without a name, or with one name", known, fix, clauses.peek())
    used = [("KEY", name) for name in capture.key] + [("CURSOR", capture.cursor)]
    if capture.deleted is not None:
        used += [("DELETED", column.name) for column in capture.deleted.find_all(exp.Column)]
    for clause, name in used:
        if name not in columns:
            fix = f"take one of the SELECT's columns: {known}"
            raise clauses.error(f"{clause} names a column that is not selected", name, fix, clauses.found[clause])


def _momentary(node: exp.Expr) -> bool:
    if isinstance(node, exp.Literal):
        return node.is_string and node.this.strip().lower() == "now" and isinstance(node.parent, exp.Func)
    if isinstance(node, exp.Anonymous):
        return node.name.upper() in MOMENTARY and len(node.expressions) < AT_LEAST.get(node.name.upper(), 99)
    return isinstance(node, exp.Func) and not MOMENTARY.isdisjoint(type(node).sql_names())
