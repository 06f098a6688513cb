"""Explains a capture before it runs: its queries, the indexes that they use, and the limits of its guarantees."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from penstock.capture import factory
from penstock.capture.checks.caveats import COST, DELIVERY, statement_caveats, table_caveats
from penstock.capture.checks.diagnostics import with_source_location
from penstock.capture.checks.introspection import inspect_statement
from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.checks.table_structure import foreign_key_caveats
from penstock.capture.checks.triggers import trigger_caveats
from penstock.capture.output.page_records import records, require
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.polling.page_size import PageSize
from penstock.capture.session import CaptureSession
from penstock.capture.snapshot.snapshot import SnapshotRun
from penstock.capture.source.base import SourceDatabase, SourceError
from penstock.codec.formats import value_encoder
from penstock.model.capture import Capture
from penstock.model.topic import DEAD_LETTERS

# Messages of drivers that cannot connect.
UNREACHED = re.compile(
    r"can't connect|connection refused|timed? ?out|timeout expired|could not translate|no route|name or service|"
    r"failed to resolve|unreachable",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ExplainedQuery:
    """A query as it is sent. `plan` has (table, index) pairs; the index is empty for a full scan."""

    what: str
    sql: str
    plan: list[tuple[str, str]]


@dataclass
class Explanation:
    """What a capture does. `warnings` are sentences about limits of its guarantees."""

    facts: list[str] = field(default_factory=list)
    queries: list[ExplainedQuery] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def explain(capture: Capture) -> Explanation:
    """Ask the database for the plan of each kind of query.

    Raises:
        SourceError: The database does not answer.
    """
    with with_source_location(capture):
        database = factory.database(capture)
        try:
            return _explained(capture, database, PageQueries(capture))
        finally:
            database.close()


def _explained(capture: Capture, database: SourceDatabase, pages: PageQueries) -> Explanation:
    explanation, page_rows = Explanation(), CaptureSession.PAGE
    proof = PagingVerifier(capture, database)
    proof.verify()
    explanation.warnings += proof.notes
    row = database.page(pages.by_key(None, 1))
    require(capture, row)
    sample = row.rows[0] if row.rows else [None] * len(row.names)
    key = tuple(sample[row.names.index(name)] for name in capture.key)
    cursor = sample[row.names.index(capture.cursor)]
    seconds = capture.every.total_seconds()
    explanation.facts += [
        f"polls every {seconds:g} s, reads {capture.overlap.total_seconds():g} s again",
        f"pages of {page_rows} rows and {PageSize.BYTES >> 20} MB at most",
        f"transactions hold it back for {capture.hold.total_seconds():g} s at most",
        _compared(capture),
        f"a row whose record is larger than {capture.max_record_bytes:,} bytes is a dead letter in {DEAD_LETTERS.name}",
    ]
    if problem := database.visibility_problem:
        delay = capture.delay.total_seconds()
        explanation.warnings.append(
            f"{DELIVERY}: {problem}, so open transactions cannot be seen; every one is taken to have ended "
            f"{delay:g} s after "
            "it began (DELAY), and what is open longer may be missed until the next reconcile"
        )
    kinds: list[tuple[str, SourceQuery]] = [
        ("snapshot and reconcile, first page", pages.by_key(None, page_rows)),
        ("snapshot and reconcile, further pages", pages.by_key(key, page_rows)),
        ("snapshot of a large table, bounds of its ranges", pages.key_at(SnapshotRun.LARGE // 2)),
        ("snapshot of a large table, first page of a range", pages.by_key(None, page_rows, upto=key)),
        ("poll, first page", pages.since(cursor, None, page_rows)),
        ("poll, further pages", pages.since(cursor, (cursor, *key), page_rows)),
        ("rows without a cursor, at every poll", pages.without_cursor(None, page_rows)),
        ("reconcile, rows of keys that the table had", pages.rows_with_keys([key])),
        ("before a snapshot, the highest cursor", pages.highest()),
        ("before a snapshot, how many rows there are", pages.count()),
    ]
    counted = kinds[-1][1].sql
    for what, query in kinds:
        plan = database.plan(query)
        explanation.queries.append(ExplainedQuery(what, query.display_sql, plan))
        scanned = sorted({table or "its rows" for table, index in plan if not index})
        if scanned and query.sql != counted:
            explanation.warnings.append(f"{COST}: no index serves {', '.join(scanned)} in `{what}`; all of it is read")
    explanation.warnings += statement_caveats(capture)
    info = inspect_statement(capture, database)
    explanation.warnings += table_caveats(capture, info)
    explanation.warnings += trigger_caveats(database, capture, info.tables)
    explanation.warnings += foreign_key_caveats(database, capture, info.tables)
    if capture.reconcile is None:
        explanation.warnings.append(
            "RECONCILE NEVER: rows deleted for good, keys that changed and rows changed without their cursor stay as "
            "they were in the topic, without a report, until a reconcile is requested (`penstock capture reconcile`)"
        )
    return explanation


def _compared(capture: Capture) -> str:
    if capture.reconcile is None:
        return "table and topic are never compared by themselves"
    hours = capture.reconcile.total_seconds() / 3600
    return f"table and topic are compared every {hours:g} h, {capture.reconcile_rate:,} rows a second at most"


def unreachable_reason(capture: Capture) -> str:
    """Why the database cannot be reached; empty if it answers, even with a refusal."""
    with with_source_location(capture):
        database = factory.database(capture)
        try:
            database.clock()
        except SourceError as e:
            return str(e.got) if UNREACHED.search(str(e.got)) else ""
        finally:
            database.close()
    return ""


def first_row(capture: Capture) -> str:
    """Read and encode one row as a poll would; returns the topic, the columns and notes.

    Raises:
        PenstockError: The capture cannot run.
    """
    with with_source_location(capture):
        database = factory.database(capture)
        try:
            inspect_statement(capture, database)
            proof = PagingVerifier(capture, database)
            proof.verify()
            page = database.page(PageQueries(capture).by_key(None, 1))
        finally:
            database.close()
        names = require(capture, page)
        # Nothing is written, so no registry is asked.
        schema = capture.topic.registry_schema
        records(capture, page, value_encoder(schema, 0) if schema else None)
    notes = [*proof.notes, *(() if page.rows else ("there are no rows yet",))]
    return "; ".join([f"topic {capture.topic.name}, columns {', '.join(names)}", *notes])
