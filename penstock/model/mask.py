"""Masks: columns that an output does not write as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.declaration import caller_location
from penstock.settings.connections import CONN_ID

Method = Literal["hashed", "encrypted", "dropped"]


@dataclass(frozen=True)
class Mask:
    """A column that is masked on the way out.

    Attributes:
        column: A column, or a field of a struct, as `customer.email`.
        method: `hashed` writes the HMAC-SHA-256 of the value's text. `encrypted` writes its AES-GCM ciphertext.
            `dropped` leaves the column out. NULL stays NULL.
        key: The key of a hash or a ciphertext: a name in `PENSTOCK_MASK_KEYS`, or the id of a Connection of Airflow.
            Empty if the column is dropped.
        location: Where it is declared.

    Raises:
        DeclarationError: The column, the method or the key cannot be meant.
    """

    column: str
    method: Method
    key: str = ""
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("column", "method", "key"):
            check_kind("a mask", name, getattr(self, name), str)
        what = f"the mask of {self.column or 'a column'}"
        if not all(self.path):
            raise DeclarationError(
                f"{what} names no column", got=repr(self.column), hint="name a column, or a field as customer.email"
            )
        if self.method not in get_args(Method):
            raise DeclarationError(
                f"{what}: the method is not known", got=repr(self.method), hint=f"use {', '.join(get_args(Method))}"
            )
        if (self.method == "dropped") == bool(self.key):
            hint = "leave the key out" if self.key else "name a key, by key= or WITH"
            raise DeclarationError(f"{what} {'needs no key' if self.key else 'needs a key'}", got=self.text, hint=hint)
        if self.key and not CONN_ID.fullmatch(self.key):
            raise DeclarationError(
                f"{what}: the name of its key is not usable",
                got=repr(self.key),
                hint="use letters, digits, '_', '-' and '.', as in the id of a Connection of Airflow",
            )

    @property
    def path(self) -> tuple[str, ...]:
        """The column, and the fields of structs below it."""
        return tuple(self.column.split("."))

    @property
    def root(self) -> str:
        """The column, in lower case."""
        return self.path[0].lower()

    @property
    def drops_column(self) -> bool:
        """Whether the whole column is left out."""
        return self.method == "dropped" and len(self.path) == 1

    @property
    def text(self) -> str:
        """As the clause MASK writes it."""
        return f"{self.column} {self.method.upper()}{f' WITH {self.key}' * bool(self.key)}"


def dropped_columns(masks: Iterable[Mask]) -> set[str]:
    """The columns that are left out, in lower case."""
    return {mask.root for mask in masks if mask.drops_column}


def mask_text(masks: Iterable[Mask]) -> str:
    """The masks of an output as one line."""
    return ", ".join(mask.text for mask in masks)


def check_masks_fit(what: str, masks: Sequence[Mask], columns: Sequence[str] | None = None) -> None:
    """Check masks of one output against each other and against its columns.

    Args:
        what: The output, for errors.
        masks: Its masks.
        columns: The columns that it writes; None if only Spark knows them.

    Raises:
        DeclarationError: They are no masks, two concern one column, or one names a column that is not written.
    """
    if not isinstance(masks, tuple) or not all(isinstance(mask, Mask) for mask in masks):
        hint = 'mask=(Mask("email", "hashed", key="pii"),)'
        raise DeclarationError(f"{what}: mask is not what it should be", got=repr(masks), hint=hint)
    paths: list[tuple[str, ...]] = []
    for mask in masks:
        path = tuple(name.lower() for name in mask.path)
        if any(path[: len(other)] == other or other[: len(path)] == path for other in paths):
            raise DeclarationError(f"{what}: two masks concern one column", got=mask.column, hint="leave one")
        paths.append(path)
        if columns is not None and mask.root not in {name.lower() for name in columns}:
            raise DeclarationError(
                f"{what}: a mask names a column that is not written",
                got=mask.column,
                hint=f"take one of: {', '.join(columns)}",
            )


def check_not_masked(what: str, masks: Iterable[Mask], uses: Iterable[tuple[str, str]], hint: str) -> None:
    """DeclarationError if a mask concerns a column that must stay as it is. uses: what each is, and its column."""
    used = {column.lower(): use for use, column in uses}
    for mask in masks:
        if mask.root in used:
            raise DeclarationError(f"{what}: {used[mask.root]} cannot be {mask.method}", got=mask.text, hint=hint)
