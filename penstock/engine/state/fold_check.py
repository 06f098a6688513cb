"""Checks the queries of folds on no rows, before there are records."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import duckdb
import pyarrow as pa
from sqlglot import tokenize
from sqlglot.errors import TokenError

from penstock.codec.arrow_types import arrow_type
from penstock.codec.columnar import EVENT_TIME
from penstock.engine.state.fold_query import (
    QUERIES,
    Query,
    drop_expired,
    fold_piece,
    query_error,
    state_schema,
    without_semicolon,
)
from penstock.engine.state.state_part import HASH
from penstock.errors import DeclarationError
from penstock.model.fold import QUERY_NAMES, Fold
from penstock.model.input import RECORD_FIELDS, Input
from penstock.model.sql.stream_query import declared_in_sql
from penstock.model.sql.volatile_functions import momentary
from penstock.model.stream import Stream
from penstock.model.types import Field

EVENT_TIME_FIELD = pa.field(EVENT_TIME, pa.timestamp("us", "UTC"))


def check_folds_of_topics(stream: Stream) -> None:
    """Check the queries of those folds of a stream in SQL that read a topic as it is.

    The columns of others, and of folds in Python, only Spark knows: `check_queries` is for those.

    Raises:
        DeclarationError: As `check_queries`.
    """
    topics = {source.source: source for source in stream.sources.values()}
    declared = declared_in_sql(stream)
    for one in declared.folds if declared else ():
        if not one.is_select:
            check_queries(one.fold, _columns(topics[one.source]))


def _columns(source: Input) -> pa.Schema:
    """The columns of an input as a transform gets them."""
    [record] = RECORD_FIELDS
    whole = pa.field(record.name, pa.struct([*_fields(record.type.fields), EVENT_TIME_FIELD]))
    return pa.schema([*_fields(source.fields), EVENT_TIME_FIELD, *([whole] if source.record else [])])


def _fields(fields: Iterable[Field]) -> list[pa.Field[pa.DataType]]:
    return [pa.field(field.name, arrow_type(field.type)) for field in fields]


def check_queries(fold: Fold, records: pa.Schema) -> None:
    """Run a fold's queries on no rows of these columns.

    Raises:
        DeclarationError: A query is not one statement, has another result each time, or cannot be run.
    """
    for query in QUERIES:
        _check_statement(fold, query)
    empty_state = state_schema(fold, records)
    no_records = records.append(pa.field(HASH, pa.int64())).empty_table()
    no_state = empty_state.empty_table()
    fold_piece(fold, no_records, no_state, lambda _: no_state, (0, 0), refusals=(duckdb.Error,))
    try:
        drop_expired(fold, empty_state.empty_table(), 0)
    except duckdb.Error as e:
        raise query_error(fold, "expires_when", e) from e


def _check_statement(fold: Fold, query: Query) -> None:
    """DeclarationError if a query is more than one statement, or calls a function that is not deterministic."""
    sql, name = getattr(fold, query), QUERY_NAMES[query]
    # What cannot be parsed is refused when it is run.
    with suppress(duckdb.ParserException):
        statement = f"SELECT (\n{without_semicolon(sql)})" if query == "expires_when" else sql
        statements = duckdb.extract_statements(statement)
        if len(statements) > 1:
            raise DeclarationError(
                f"{fold.query_location(query)}: {name} of fold {fold.name} is more than one statement",
                got=" ".join(statements[1].query.split())[:200],
                hint="write one SELECT; WITH names the steps before it",
            )
    # As above.
    with suppress(TokenError):
        for token, call in momentary(tokenize(sql, dialect="duckdb"), "duckdb"):
            raise DeclarationError(
                f"{fold.query_location(query, token.start)}: {name} of fold {fold.name} has another result each time, "
                "and a batch that runs again must have the same",
                got=call,
                hint="take event_time, a field, or getvariable('time')",
            )
