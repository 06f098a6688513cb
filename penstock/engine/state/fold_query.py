"""The queries of a fold over the rows of one part, by DuckDB on Arrow tables; no row is touched by Python."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_types import arrow_type
from penstock.codec.columnar import EVENT_TIME, connection
from penstock.engine.state.fold_columns import cast_result, check_result
from penstock.engine.state.state_part import HASH, Hashes
from penstock.errors import DeclarationError, PenstockError
from penstock.model.fold import QUERY_NAMES, Fold
from penstock.model.output_mode import millis
from penstock.model.types import Field

# The most rows that are folded at once; more are split by key.
ROWS = 500_000
# With more pieces than this it is not the number of rows that exhausts memory.
PIECES = 4096


Query = Literal["update_sql", "emit_sql", "expires_when", "restore_sql"]


class QueryFacts(NamedTuple):
    """What errors say of a query of a fold.

    Attributes:
        reads: The tables that it may read.
        lines_before: Lines of the statement before the query.
    """

    reads: str
    lines_before: int = 0


QUERIES: dict[Query, QueryFacts] = {
    "update_sql": QueryFacts("the tables records and state", 1),
    "emit_sql": QueryFacts("the tables folded, records and state"),
    "expires_when": QueryFacts("the columns of the key and the state", 1),
    "restore_sql": QueryFacts("the table output: the columns of the key and the value of its records"),
}
REFUSALS = (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException)
ERROR_LINE = re.compile(r"^(?P<line>LINE (?P<number>\d+): )(?P<excerpt>.*)\n(?P<blanks> *)\^", re.MULTILINE)


class StateLookup(Protocol):
    """Looks up the state of keys, by hash."""

    def __call__(self, hashes: Hashes) -> pa.Table: ...


class FoldResult(NamedTuple):
    """The result of a fold.

    Attributes:
        rows: The rows for the transform.
        state: The new state of all hashes of the records.
        deleted: Hashes of the records that have no state any more.
        previous_keys: How many keys of these hashes had a state.
        late: How many rows were left out as late.
    """

    rows: pa.Table
    state: pa.Table
    deleted: Hashes
    previous_keys: int
    late: int


def state_schema(fold: Fold, records: pa.Schema) -> pa.Schema:
    """The columns of a fold's state: `_hash BIGINT`, the key and the state's fields."""
    key = [records.field(name).with_nullable(True) for name in fold.key]
    return pa.schema([pa.field(HASH, pa.int64()), *key, *_arrow(fold.state_fields)])


def output_schema(fold: Fold) -> pa.Schema:
    """The columns of a fold's rows."""
    return pa.schema(_arrow(fold.output_fields))


def _arrow(fields: tuple[Field, ...]) -> list[pa.Field[pa.DataType]]:
    return [pa.field(f.name, arrow_type(f.type)) for f in fields]


def run_fold(
    fold: Fold,
    records: pa.Table,
    find_state: StateLookup,
    watermark: int,
    *,
    late: bool,
    due: pa.Table | None = None,
    time: int | None = None,
) -> FoldResult:
    """Fold rows into the state of their keys.

    Args:
        fold: The fold.
        records: The rows, with `_hash`.
        find_state: Looks up the state.
        watermark: Epoch ms.
        late: Whether rows up to the watermark are left out.
        due: State whose timer has fired; it is folded whether its keys have records or not.
        time: Epoch ms that event time has reached; the watermark if it is None.

    Raises:
        PenstockError: A row has no key, or no event time by which it is late or not.
        DeclarationError: The fold's queries cannot be run on such rows.
    """
    for name in fold.key:
        if holes := records[name].null_count:
            raise PenstockError(
                f"fold {fold.name} gets rows without their key",
                got=f"{holes} rows whose {name} is NULL",
                hint="filter them out before the fold, or give them a key",
            )
    count = len(records)
    if late:
        if holes := records[EVENT_TIME].null_count:
            raise PenstockError(
                f"fold {fold.name} gets rows without their {EVENT_TIME}",
                got=f"{holes} rows whose {EVENT_TIME} is NULL",
                hint="filter them out before the fold, or make it of a field that is never NULL",
            )
        # Event times are finer than the watermark: a record of the same millisecond is late.
        passed = pa.scalar(watermark * 1000, pa.timestamp("us", "UTC"))
        records = records.filter(pc.greater(records[EVENT_TIME], passed))
    due = state_schema(fold, records.schema).empty_table() if due is None else due
    time = watermark if time is None else time
    pieces = -(-(len(records) + len(due)) // ROWS)
    while True:
        try:
            split = zip(_split_by_key(records, pieces), _split_by_key(due, pieces), strict=True)
            return _join_results(
                fold, [fold_piece(fold, *piece, find_state, (watermark, time)) for piece in split], count, records
            )
        except duckdb.OutOfMemoryException:
            pieces = max(2, pieces * 2)
            if pieces > PIECES:
                raise


def _split_by_key(records: pa.Table, pieces: int) -> list[pa.Table]:
    """Split rows by key into a number of tables."""
    if pieces <= 1:
        return [records] * pieces
    number = records[HASH].to_numpy().view(np.uint64) % np.uint64(pieces)
    return [records.filter(pa.array(number == n)) for n in range(pieces)]


def _join_results(fold: Fold, results: list[FoldResult], count: int, records: pa.Table) -> FoldResult:
    return FoldResult(
        pa.concat_tables([output_schema(fold).empty_table(), *(result.rows for result in results)]),
        pa.concat_tables([state_schema(fold, records.schema).empty_table(), *(result.state for result in results)]),
        np.concatenate([np.empty(0, np.int64), *(result.deleted for result in results)]),
        sum(result.previous_keys for result in results),
        count - len(records),
    )


def fold_piece(
    fold: Fold,
    records: pa.Table,
    due: pa.Table,
    find_state: StateLookup,
    times: tuple[int, int],
    refusals: tuple[type[duckdb.Error], ...] = REFUSALS,
) -> FoldResult:
    """As `run_fold`, all rows at once. times: watermark and time. refusals: the errors that are told as the query's."""
    hashes = np.unique(np.concatenate([records[HASH].to_numpy(), due[HASH].to_numpy()]))
    previous = find_state(hashes)
    con, key = connection(), ", ".join(f'"{name}"' for name in fold.key)
    tables = {"records": records.drop_columns([HASH]), "_records": records, "_due": due, "_there": previous}
    try:
        for name, table in tables.items():
            con.register(name, table)
        _set_variables(con, fold, watermark=times[0], time=times[1])
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE _touched AS SELECT {HASH}, {key} FROM _records "
            f"UNION SELECT {HASH}, {key} FROM _due"
        )
        # The fold must not see another key of the same hash.
        state = query_table(con, f"FROM _there SEMI JOIN _touched USING ({HASH}, {key})")
        others = previous.slice(0, 0)
        if len(state) < len(previous):
            others = query_table(con, f"FROM _there ANTI JOIN _touched USING ({HASH}, {key})")
        con.register("state", state.drop_columns([HASH]))
        query: Query = "update_sql"
        con.execute(f"CREATE OR REPLACE TEMP TABLE folded AS\n{without_semicolon(fold.update_sql)}")
        folded = query_table(con, "FROM folded LIMIT 0").schema
        check_result(fold, query, folded, state_schema(fold, records.schema).remove(0))
        names = ", ".join(f'f."{f.name}"' for f in fold.state_fields)
        key_columns = ", ".join(f't."{name}"' for name in fold.key)
        same_key = " AND ".join(f't."{name}" = f."{name}"' for name in fold.key)
        updated = query_table(
            con, f"SELECT t.{HASH}, {key_columns}, {names} FROM folded f JOIN _touched t ON {same_key}"
        )
        _check(fold, con, key, updated)
        query = "emit_sql"
        rows = query_table(con, without_semicolon(fold.emit_sql))
        changed = cast_result(fold, "update_sql", updated, state_schema(fold, records.schema))
        new_state = pa.concat_tables([changed, others.cast(previous.schema)])
        deleted = np.setdiff1d(hashes, new_state[HASH].to_numpy())
        return FoldResult(
            cast_result(fold, "emit_sql", rows, output_schema(fold)), new_state, deleted, len(previous), 0
        )
    except refusals as e:
        raise query_error(fold, query, e) from e
    finally:
        for name in ("folded", "_touched"):
            con.execute(f"DROP TABLE IF EXISTS {name}")
        for name in (*tables, "state"):
            con.unregister(name)


def _check(fold: Fold, con: duckdb.DuckDBPyConnection, key: str, fresh: pa.Table) -> None:
    """DeclarationError if the query returned a key twice, or a key without a record."""
    (count,) = con.execute("SELECT count(*) FROM folded").fetchall()[0]
    if count == len(fresh) == len(np.unique(fresh[HASH].to_numpy())):
        return
    # Two keys may have the same hash.
    (different,) = con.execute(f"SELECT count(*) FROM (SELECT DISTINCT {key} FROM folded)").fetchall()[0]
    if not count == different == len(fresh):
        place = fold.query_location("update_sql")
        raise DeclarationError(
            f"{place}: fold {fold.name} gives a key twice, or a key without a record or a due timer",
            got=f"{count} rows of {different} keys, {len(fresh)} of them with a record or a due timer",
            hint="give one row for each key with a record or a due timer, or no row to forget the key",
        )


def query_error(fold: Fold, query: Query, e: duckdb.Error) -> DeclarationError:
    """The error of a query that DuckDB refuses, with its place as far as DuckDB says it."""
    place = fold.query_location(query, _error_offset(getattr(fold, query), str(e), QUERIES[query].lines_before))
    return DeclarationError(
        f"{place}: {QUERY_NAMES[query]} of fold {fold.name} is refused by DuckDB",
        got=" ".join(str(e).split())[:600],
        hint=f"let it read {QUERIES[query].reads}",
    )


def _error_offset(sql: str, message: str, lines_before: int) -> int:
    """The offset in a query at which a message of DuckDB puts an error; 0 if it does not say.

    Args:
        sql: The query.
        message: DuckDB's, with an excerpt of a line and a caret below.
        lines_before: Lines of the statement before the query.
    """
    match = ERROR_LINE.search(message)
    lines = sql.split("\n")
    number = int(match["number"]) - 1 - lines_before if match else -1
    if not match or not 0 <= number < len(lines):
        return 0
    # Of a long line there is an excerpt, with `...` where it is cut.
    excerpt, cut = match["excerpt"], 3 if match["excerpt"].startswith("...") else 0
    begins = lines[number].find(excerpt[cut:].removesuffix("..."))
    column = max(0, begins) + max(0, len(match["blanks"]) - len(match["line"]) - cut)
    return sum(len(line) + 1 for line in lines[:number]) + min(column, len(lines[number]))


def drop_expired(fold: Fold, rows: pa.Table, watermark: int) -> pa.Table:
    """The rows of a state without keys that have expired."""
    con = connection()
    con.register("_rows", rows)
    try:
        _set_variables(con, fold, watermark=watermark)
        remaining = query_table(
            con, f"FROM _rows WHERE NOT coalesce((\n{without_semicolon(fold.expires_when)}), false)"
        )
    finally:
        con.unregister("_rows")
    return remaining.cast(rows.schema)


def _set_variables(con: duckdb.DuckDBPyConnection, fold: Fold, **times: int) -> None:
    """Set what the fold's queries read by `getvariable`: times, epoch ms, and the fold's durations, ms."""
    for name, value in {**times, **{name: millis(value) for name, value in fold.variables.items()}}.items():
        con.execute(f'SET VARIABLE "{name}" = {value}::BIGINT')


def query_table(con: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """The rows of a query; duckdb.Error, with the line, if it is refused."""
    try:
        result: pa.Table = con.sql(sql).to_arrow_table()
    except REFUSALS:
        # This error has no line. `execute` makes one that has, but copies rows once more.
        con.execute(sql)
        raise
    return result


def without_semicolon(sql: str) -> str:
    return f"{sql.rstrip().removesuffix(';')}\n"
