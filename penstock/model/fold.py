"""State by key, kept and changed in columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.declaration import caller_location, check_name, moved_location
from penstock.model.output_mode import check_duration
from penstock.model.schema import schema
from penstock.model.types import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The engine's function, by name: a declaration is read where there is no Spark.
APPLY = "penstock.engine.state.fold:apply_fold"
# As errors name the queries.
QUERY_NAMES = {
    "update_sql": "the update query", "emit_sql": "the emit query", "expires_when": "the condition of expiry",
    "restore_sql": "the restore query",
}  # fmt: skip
# The variables that the engine sets for a query, beside those of the fold.
ENGINE_VARIABLES: dict[str, tuple[str, ...]] = {
    "update_sql": ("watermark", "time"), "emit_sql": ("watermark", "time"), "expires_when": ("watermark",),
}  # fmt: skip
VARIABLE_READ = re.compile(r"\bgetvariable\s*\(\s*'([^']*)'\s*\)", re.IGNORECASE)
VARIABLE_NAMES = "use letters, digits and '_', and neither watermark nor time"


def is_variable_name(name: object) -> bool:
    """Whether a fold may have a variable of this name: an identifier that the engine does not use itself."""
    is_identifier = isinstance(name, str) and name.isascii() and name.isidentifier()
    return is_identifier and str(name).lower() not in ENGINE_VARIABLES["update_sql"]


def unknown_variable(query: str, sql: str, variables: Iterable[str]) -> re.Match[str] | None:
    """The first variable that a query of a fold reads and that is not set; its group is the name.

    Args:
        query: The attribute of the query.
        sql: The query.
        variables: The names of the fold's.
    """
    known = {one.lower() for one in _variables_of(query, variables)}
    return next((one for one in VARIABLE_READ.finditer(sql) if one[1].lower() not in known), None)


def variables_hint(query: str, variables: Iterable[str], declare: str, name: str) -> str:
    """What to do about an unknown variable. declare: how one is declared. name: the unknown one's."""
    if not (known := _variables_of(query, variables)):
        return "it has no variables"
    return f"take one of: {', '.join(known)}{f'; or declare {declare}' if is_variable_name(name) else ''}"


def _variables_of(query: str, variables: Iterable[str]) -> list[str]:
    return [*ENGINE_VARIABLES[query], *variables] if query in ENGINE_VARIABLES else []


@dataclass(frozen=True)
class Fold:
    """A step of a transform that folds rows into a state of their key, a whole batch at a time, by queries of DuckDB.

    Called with a frame, it gives a frame: `VISITS(probes)`. A stream with a fold uses the output mode `KeyedState`.

    In the queries `getvariable('watermark')` is the time behind which records of the batch are late, epoch ms, and
    `getvariable('time')` how far event time had come before the batch, which may be later: timers up to then fire. The
    result must not depend on how records are cut into batches more than the watermark does, and a batch that runs again
    must give the same: so no `now()` and no `random()`. `arg_max`, `any_value` and the like skip NULL: pack what may be
    NULL, `struct_pack(v := v)`.

    Attributes:
        name: of the state; a stream may have several. Small letters, digits and single `-`.
        key: the frame's columns that a state belongs to; none of them may be NULL.
        state_schema: Spark DDL of the state of a key, without the key.
        update_sql: a SELECT over `records`, the frame's columns with `event_time TIMESTAMPTZ`, and `state`, the key and
            state of those keys that have a record and a state, or whose timer fires. It gives the key and the new
            state, once for each key; the state of a key that it leaves out is deleted. Further columns are for
            `emit_sql`.
        emit_sql: a SELECT over `folded`, the result of `update_sql`, and over the same two tables.
        output_schema: Spark DDL of the rows of `emit_sql`, with which the transform goes on.
        expires_when: a condition over key and state: the state may be deleted, as a key without it would behave the
            same.
        timer_field: a BIGINT field of the state: the time, epoch ms, at which the key is folded though no record of it
            comes. In the first batch after event time has come so far, the key is in `state`, and perhaps in no record.
            `update_sql` moves it on, or sets it to NULL for never: a key whose time has come is folded in every batch.
            It takes `KeyedState(tick=...)`.
        restore_sql: a SELECT over `output`, the newest record of each key of the stream's compacted output, in the
            columns that its key and value are made of. It gives the key and the state. Empty if those do not hold the
            state.
        input_retention: how long before the watermark the inputs must still hold their records, so that a lost state
            can be rebuilt from them: to fold all of them at once gives the same, and an older record changes nothing.
            None if that is not so; without `restore_sql` the state is then lost with its checkpoint.
        variables: durations by name: `getvariable('wait')` is that of `wait` in ms, in each query but `restore_sql`.
        location: where it is declared.
        query_locations: of a fold in SQL, the file, line and column at which each of its queries begins, by attribute.
    """

    name: str
    key: tuple[str, ...]
    state_schema: str
    update_sql: str
    emit_sql: str
    output_schema: str
    expires_when: str = "false"
    timer_field: str = ""
    restore_sql: str = ""
    input_retention: timedelta | None = None
    variables: Mapping[str, timedelta] = field(default_factory=dict, hash=False)
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)
    query_locations: Mapping[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_name("fold", self.name)
        for name in (
            "state_schema", "update_sql", "emit_sql", "output_schema", "expires_when", "timer_field", "restore_sql",
        ):  # fmt: skip
            check_kind(f"fold {self.name}", name, getattr(self, name), str)
        key: object = self.key
        if not (isinstance(key, tuple) and key and all(isinstance(name, str) and name for name in key)):
            raise DeclarationError(
                f"fold {self.name} has no key", got=repr(key), hint="name the columns: key=('device', 'business')"
            )
        kinds = {field.name: field.type.kind for field in self.state_fields}
        if repeated := sorted({name.lower() for name in self.key} & {name.lower() for name in kinds}):
            raise DeclarationError(
                f"fold {self.name} has its key in the state too",
                got=", ".join(repeated),
                hint="leave it out of the state",
                argument="state_schema",
            )
        if self.timer_field and kinds.get(self.timer_field) != "bigint":
            raise DeclarationError(
                f"fold {self.name} has a timer that is no field of its state",
                got=self.timer_field,
                hint="name a BIGINT field of the state, epoch ms",
                argument="timer_field",
            )
        if self.input_retention is not None:
            check_duration(f"fold {self.name}: input_retention", self.input_retention)
            if self.timer_field:
                raise DeclarationError(
                    f"fold {self.name} has timers, and is to be rebuilt from its inputs",
                    got=f"timer {self.timer_field}, input retention {self.input_retention}",
                    hint="leave out the input retention: rows of timers that have fired would be emitted again",
                    argument="input_retention",
                )
        self._check_variables()
        assert self.output_fields

    def _check_variables(self) -> None:
        """The fold's variables are durations, and its queries read no others: DuckDB takes an unknown one for NULL."""
        check_kind(f"fold {self.name}", "variables", self.variables, Mapping)
        for name, value in self.variables.items():
            if not is_variable_name(name):
                raise DeclarationError(
                    f"fold {self.name} has a variable whose name is not usable",
                    got=repr(name),
                    hint=VARIABLE_NAMES,
                )
            check_duration(f"fold {self.name}: variable {name}", value)
        for attribute, query in QUERY_NAMES.items():
            if unknown := unknown_variable(attribute, getattr(self, attribute), self.variables):
                raise DeclarationError(
                    f"{query} of fold {self.name} reads an unknown variable",
                    got=unknown[0],
                    hint=variables_hint(attribute, self.variables, "Fold(variables=...)", unknown[1]),
                )

    @property
    def can_rebuild(self) -> bool:
        """Whether a lost state can be rebuilt."""
        return bool(self.restore_sql) or self.input_retention is not None

    @property
    def state_fields(self) -> tuple[Field, ...]:
        """The fields of the state, without the key."""
        return schema(self.state_schema, f"the state of fold {self.name}", of_json=False)

    @property
    def output_fields(self) -> tuple[Field, ...]:
        """The fields of its rows."""
        return schema(self.output_schema, f"the rows of fold {self.name}", of_json=False)

    def query_location(self, attribute: str, at: int = 0) -> str:
        """Where a character of one of its queries stands: `file:line:column`, or where the fold is declared."""
        begins = self.query_locations.get(attribute)
        return moved_location(begins, getattr(self, attribute), at) if begins else self.location

    def __call__(self, frame: DataFrame) -> DataFrame:
        rows: DataFrame = resolve_name(APPLY)(self, frame)
        return rows
