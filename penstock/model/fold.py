"""State by key, kept and changed in columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.declaration import check_name
from penstock.model.output_mode import check_duration
from penstock.model.schema import Field, schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APPLIED = "penstock.engine.state.fold:apply_fold"


@dataclass(frozen=True)
class Fold:
    """A step of a transform that folds rows into a state of its key, a whole batch at a time, by queries of DuckDB.

    name: of the state; a stream may have several. Called with a frame, it gives a frame: `VISITS(probes)`.
    key: the frame's columns that say whose a row is; none of them may be NULL.
    state: Spark DDL of what is kept for a key, beside the key itself.
    fold: a SELECT over two tables: `records`, the frame's columns, `event_time TIMESTAMPTZ` among them; and `state`,
        the key and what is kept, of those keys that have a record and a state. It gives the key and the new state, once
        for each key; a key of the records, or one that is due, that it leaves out is forgotten. It may give more
        columns, for `rows`.
    rows: a SELECT over `folded`, what `fold` gave, and over the same two tables.
    gives: Spark DDL of what `rows` gives: the columns of the frame that the transform goes on with.
    ends: a condition over the key and the state: what may be forgotten, for a key without it would come to the same.
    due: the field of the state, BIGINT, that says when its key is to be folded though no record of it comes, in epoch
        ms: in the first batch that begins when time has come so far the key is in `state`, and perhaps in no record.
        Let `fold` move it on, or to NULL for never: a key whose time has come is folded in every batch. With it the
        stream needs `KeyedState(tick=...)`.
    restored: a SELECT over `output`, the newest record of each key of the stream's compacted output, in the columns
        that its key and value are made of: it gives the key and the state. Empty if those do not hold the state.
    reads_back: how long before the watermark the inputs must still hold their records, so that a state that is lost can
        be made of these: all of them folded at once come to the same, and a record that is older changes nothing in it.
        None if that is not so; without `restored` the state is then lost with its checkpoint.

    `getvariable('watermark')` is what records of the batch are late by, in epoch ms, and `getvariable('time')` how far
    time has come before it, which may be later: what is due up to then is folded. How records are cut into batches must
    not matter more than the rule says, and a batch that runs again must come to the same: so no `now()` and no
    `random()`. `arg_max`, `any_value` and the like pass a NULL over: pack what may be NULL, `struct_pack(v := v)`.

    A stream with a fold uses `KeyedState`.
    """

    name: str
    key: tuple[str, ...]
    state: str
    fold: str
    rows: str
    gives: str
    ends: str = "false"
    due: str = ""
    restored: str = ""
    reads_back: timedelta | None = None

    def __post_init__(self) -> None:
        check_name("fold", self.name)
        for name in ("state", "fold", "rows", "gives", "ends", "due", "restored"):
            check_kind(f"fold {self.name}", name, getattr(self, name), str)
        key: object = self.key
        if not (isinstance(key, tuple) and key and all(isinstance(name, str) and name for name in key)):
            raise DeclarationError(
                f"fold {self.name} has no key", got=repr(key), hint="name the columns: key=('device', 'business')"
            )
        names = [f.name.lower() for f in self.kept]
        if twice := sorted({name.lower() for name in self.key} & set(names)):
            raise DeclarationError(
                f"fold {self.name} keeps its key twice", got=", ".join(twice), hint="leave it out of the state"
            )
        if self.due and {f.name: f.type.kind for f in self.kept}.get(self.due) != "bigint":
            raise DeclarationError(
                f"fold {self.name} is due at what its state does not have",
                got=self.due,
                hint="name a field of its state that is a BIGINT, in epoch ms",
            )
        if self.reads_back is not None:
            check_duration(f"fold {self.name}: reads_back", self.reads_back)
            if self.due:
                raise DeclarationError(
                    f"fold {self.name} has keys that are due, and is to be made of its inputs",
                    got=f"due={self.due!r}, reads_back={self.reads_back!r}",
                    hint="leave out reads_back: what was due would be told once more",
                )
        assert self.given

    @property
    def rebuilds(self) -> bool:
        """Whether a state that is lost can be made anew."""
        return bool(self.restored) or self.reads_back is not None

    @property
    def kept(self) -> tuple[Field, ...]:
        """The fields of its state, beside the key."""
        return schema(self.state, f"the state of fold {self.name}", of_json=False)

    @property
    def given(self) -> tuple[Field, ...]:
        """The fields of its rows."""
        return schema(self.gives, f"the rows of fold {self.name}", of_json=False)

    def __call__(self, frame: DataFrame) -> DataFrame:
        made: DataFrame = resolve_name(APPLIED)(self, frame)
        return made
