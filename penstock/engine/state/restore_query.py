"""A fold's state from the records of an output: the fold's query over the newest record of each key.

It runs by DuckDB on Arrow tables; no row is touched by Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec import json_sql
from penstock.codec.columnar import connection
from penstock.codec.formats import value_decoder
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner
from penstock.codec.registry_values import TEXT, RegistryValues
from penstock.codec.text import as_text
from penstock.codec.validation import VALUE_CHARS
from penstock.engine.state import fold_query
from penstock.engine.state.fold_columns import cast_result
from penstock.engine.state.state_part import HASH
from penstock.model.fold import Fold
from penstock.model.types import Field

RECORD_COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
# A key is in one partition. Where partitions were added since, it may be in another too: then the later record counts.
NEWEST_PER_KEY = """
SELECT arg_max(row, (moment, partition)) AS row FROM (
  SELECT key, partition, arg_max(_row, "offset") AS row, arg_max(timestamp, "offset") AS moment
  FROM _records GROUP BY key, partition)
GROUP BY key"""


class UnreadableOutput(Exception):
    """A record of an output from which no state can be restored."""


@dataclass(frozen=True)
class RecordText:
    """Columns in the key or the value of a record.

    Attributes:
        of: Where they are.
        fields: The columns.
        plain: Whether it is one column as text; otherwise a JSON object of columns.
        registry: How it is decoded, if it is in the wire format of a schema registry.
    """

    of: Literal["key", "value"]
    fields: tuple[Field, ...] = ()
    plain: bool = False
    registry: RegistryValues | None = None

    @property
    def is_parsed(self) -> bool:
        """Whether its columns are those of a struct."""
        return self.registry is not None and not self.registry.schema.is_json

    @property
    def parsed(self) -> list[str]:
        """SQL columns that are parsed once for all fields."""
        if self.plain or self.is_parsed or not self.fields:
            return []
        text, parts = f"_{self.of}", f"_{self.of}_parts"
        names = f"CASE WHEN {parts} IS NOT NULL THEN json_keys({text}) END AS _{self.of}_names"
        return [f"{json_sql.parse_record(text, self.fields)} AS {parts}", names]

    def value_sql(self, field: Field) -> str:
        """SQL of the value of a field."""
        text, kind = f"_{self.of}", field.type.kind
        if self.is_parsed:
            return f"_parsed.{json_sql.quote_name(field.name)}::{json_sql.duckdb_type(field.type)}"
        if not self.plain:
            return json_sql.field_value(f"_{self.of}_parts", field, text)
        if kind in ("string", "binary"):
            return text if kind == "string" else f"_raw_{self.of}"
        if kind in json_sql.INTEGERS or kind == "boolean":
            return json_sql.json_value(text, field.type)
        return f"try_cast({text} AS {json_sql.duckdb_type(field.type)})"

    @property
    def error_sql(self) -> Iterator[tuple[str, str]]:
        """SQL of errors: a BOOLEAN condition and its VARCHAR message."""
        if self.registry:
            yield "_error IS NOT NULL", "_error"
        if self.is_parsed:
            return
        text, parts = f"_{self.of}", f"_{self.of}_parts"
        excerpt = f"coalesce(substr({text}, 1, {VALUE_CHARS}), 'not valid UTF-8')"
        if self.fields and not self.plain:
            yield f"{parts} IS NULL", f"'its {self.of} is no JSON object: ' || {excerpt}"
        for f in self.fields:
            if not self.plain and not self.registry:
                # The writer leaves no column out: a record that lacks one is of another version.
                lacks = json_sql.literal(f"its {self.of} has no column {f.name}: ")
                yield f"NOT list_contains(_{self.of}_names, {json_sql.literal(f.name)})", f"{lacks} || {excerpt}"
            prefix = json_sql.literal(f"column {f.name} of its {self.of} is no {f.type}: ")
            is_invalid = (
                f"{json_sql.quote_name(f.name)} IS NULL"
                if self.plain
                else json_sql.is_field_invalid(parts, f, json_sql.quote_name(f.name), text)
            )
            message = text if self.plain else json_sql.field_text(parts, f, text)
            yield is_invalid, f"{prefix} || coalesce(substr({message}, 1, {VALUE_CHARS}), 'not valid UTF-8')"


@dataclass(frozen=True)
class RestoreQuery:
    """Restores the state of a fold from its output.

    Called with batches of the columns `RECORD_COLUMNS`, all records of some keys, it returns the state of these keys.

    Attributes:
        fold: The fold.
        topic: The topic of its output.
        texts: The columns of its key and its value.
        layout: The key's columns and the state's fields.
        signer: Recognises heartbeats.
    """

    fold: Fold
    topic: str
    texts: tuple[RecordText, ...]
    layout: pa.Schema
    signer: HeartbeatSigner | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if records := list(batches):
            yield from self.state(pa.Table.from_batches(records)).to_batches()

    def check(self) -> None:
        """Run its query on no rows; DeclarationError if it cannot be run."""
        self.state(pa.schema(list(RECORD_COLUMNS.items())).empty_table())

    def state(self, records: pa.Table) -> pa.Table:
        """The state of some keys, of which these are all records; UnreadableOutput if the newest one of a key cannot be
        decoded, or the query fails."""
        con = connection()
        try:
            newest = self._newest(con, records)
            # An output may have columns of the same names.
            newest = newest.rename_columns([f"_raw_{name}" for name in newest.schema.names])
            for of in ("key", "value"):
                newest = newest.append_column(f"_{of}", as_text(newest[f"_raw_{of}"]))
            for registry in (text.registry for text in self.texts if text.registry):
                values = newest.select(["_raw_value"]).rename_columns(["value"])
                for name, column in value_decoder(registry).columns(values).items():
                    if name == TEXT:
                        newest = newest.set_column(newest.schema.get_field_index("_value"), "_value", column)
                    else:
                        newest = newest.append_column(name, column)
            con.register("_records", newest)
            con.execute(f"CREATE OR REPLACE TEMP TABLE _decoded AS {self._decoded}")
            bad = "SELECT _raw_partition, _raw_offset, _why FROM _decoded WHERE _why IS NOT NULL ORDER BY ALL LIMIT 1"
            for partition, offset, why in con.execute(bad).fetchall():
                raise UnreadableOutput(f"{self.topic}[{partition}]@{offset}: {why}")
            names = (
                ", ".join(json_sql.quote_name(f.name) for text in self.texts for f in text.fields) or "NULL AS _none"
            )
            con.execute(f"CREATE OR REPLACE TEMP VIEW output AS SELECT {names} FROM _decoded")
            restored = fold_query.query_table(con, fold_query.without_semicolon(self.fold.restore_sql))
        except fold_query.REFUSALS as e:
            raise fold_query.query_error(self.fold, "restore_sql", e) from e
        except duckdb.Error as e:
            raise UnreadableOutput(
                f"`restore_sql` of fold {self.fold.name} fails: {' '.join(str(e).split())[:300]}"
            ) from e
        finally:
            con.execute("DROP VIEW IF EXISTS output")
            con.execute("DROP TABLE IF EXISTS _decoded")
            con.unregister("_records")
        return cast_result(self.fold, "restore_sql", restored, self.layout)

    def _newest(self, con: duckdb.DuckDBPyConnection, records: pa.Table) -> pa.Table:
        con.register("_records", records.append_column("_row", pa.array(np.arange(len(records)))))
        newest = records.take(con.sql(NEWEST_PER_KEY).to_arrow_table()["row"].cast(pa.int64()))
        newest = newest.filter(pc.is_valid(newest["value"]))
        beats = newest.filter(pc.equal(newest["key"], pa.scalar(HEARTBEAT_KEY, pa.binary()))).to_pylist()
        if self.signer and any(self.signer.verified_time(self.topic, one["partition"], one["value"]) for one in beats):
            newest = newest.filter(pc.not_equal(newest["key"], pa.scalar(HEARTBEAT_KEY, pa.binary())))
        return newest

    @property
    def _decoded(self) -> str:
        """SQL of each record's columns, and of what is error_sql with it."""
        parsed = "".join(f", {one}" for text in self.texts for one in text.parsed)
        values = "".join(
            f", {text.value_sql(f)} AS {json_sql.quote_name(f.name)}" for text in self.texts for f in text.fields
        )
        errors = " ".join(f"WHEN {test} THEN {message}" for text in self.texts for test, message in text.error_sql)
        why = f"CASE {errors} END" if errors else "NULL"
        return f"SELECT *, {why} AS _why FROM (SELECT *{values} FROM (SELECT *{parsed} FROM _records))"


def check_unique_keys(tables: Iterable[pa.Table], key: Sequence[str]) -> Iterator[pa.Table]:
    """Pass on tables sorted by hash and key; UnreadableOutput if a key comes twice or lacks a column."""
    last: pa.Table | None = None
    for table in tables:
        named = table.select([HASH, *key])
        if missing := [name for name in key if named[name].null_count]:
            raise UnreadableOutput(f"`restore_sql` gives rows whose {', '.join(missing)} is NULL")
        both = pa.concat_tables([last, named]) if last is not None else named
        hashes = both[HASH].to_numpy()
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        for one, next_one in zip(both.take(same).to_pylist(), both.take(same + 1).to_pylist(), strict=True):
            if one == next_one:
                raise UnreadableOutput(
                    f"`restore_sql` gives two rows of the key {', '.join(str(one[name]) for name in key)}"
                )
        last = named.slice(len(named) - 1)
        yield table
