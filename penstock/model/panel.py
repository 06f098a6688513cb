"""Panels: sections of the operator page about the rows of views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NoReturn, get_args

from penstock.errors import DeclarationError
from penstock.model.declaration import CatalogNode, Kind, caller_location, check_name
from penstock.model.output import Columns
from penstock.model.view import View

if TYPE_CHECKING:
    from penstock.model.types import Field

Format = Literal["text", "time", "age", "seconds", "status"]
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")
# Types of the fields that a format can show; any but arrays and structs for `text`.
TYPES: Mapping[Format, tuple[str, ...]] = {
    "time": ("bigint",), "age": ("bigint",), "seconds": NUMBERS, "status": ("boolean",),
}  # fmt: skip


@dataclass(frozen=True)
class PanelValue:
    """A value of a row with its title.

    Attributes:
        title: of the value, or of its column in a table.
        fields: the field that has it; several fields are shown one after the other.
        format: `text`; `time`, milliseconds since the epoch; `age`, the same with the time since then; `seconds`, a
            duration; `status`, a BOOLEAN by the panel's `status_names`.
    """

    title: str
    fields: Columns
    format: Format = "text"

    @property
    def field_names(self) -> Sequence[str]:
        return (self.fields,) if isinstance(self.fields, str) else self.fields


@dataclass(frozen=True)
class PanelCard:
    """What a panel shows about a key that an operator searches for.

    By default that is the row of the key in a view. With `match` it is a table of rows that share a field with it.

    Attributes:
        title: of the card.
        view: of the rows.
        values: of the row of the key.
        elements: a field of the row, ARRAY<STRUCT<...>>, whose elements are shown as a table.
        columns: of the table: fields of the elements, or with `match` fields of the rows.
        match: a field of `query_by`, which the panel's view also has: rows with the value of the key's row are shown.
        order: with `match`, the field of `query_by` by which rows are sorted, the greatest value first.
        empty: the text if there is no row.
    """

    title: str
    view: View
    values: Sequence[PanelValue] = ()
    elements: str = ""
    columns: Sequence[PanelValue] = ()
    match: str = ""
    order: str = ""
    empty: str = "There is no such row."


@dataclass(frozen=True)
class Panel:
    """A section of the operator page: rows of a view counted by fields, and a search by key.

    Attributes:
        name: unique.
        title: heading of the section.
        view: of the rows.
        dimensions: the fields of `query_by` by which rows are counted, with their titles.
        singular: what one row is, such as `order`.
        plural: what several rows are, such as `orders`.
        status: a BOOLEAN field of `query_by` by which all counts are divided; none if empty.
        status_names: how the status is called where the field is true, and where it is false.
        since: a BIGINT field of `query_by`, the time of the last change of the status in milliseconds since the epoch:
            changes of the last hour are counted. None if empty.
        cards: what is shown about a key; without cards there is no search.
        empty: the text while the view has no rows, such as how to get some.
        location: where it is declared.
    """

    name: str
    title: str
    view: View
    dimensions: Mapping[str, str]
    singular: str = "row"
    plural: str = "rows"
    status: str = ""
    status_names: tuple[str, str] = ("yes", "no")
    since: str = ""
    cards: Sequence[PanelCard] = ()
    empty: str = ""
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "panel"
    app: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_name("panel", self.name)
        if not isinstance(self.view, View):
            self._fail("view is no View", self.view, "import the View that serves the rows")
        if not self.dimensions:
            self._fail("there is no dimension", None, "name a field by which rows are counted, with its title")
        for name in self.dimensions:
            self._check_query(self.view, name, "dimensions")
        if self.status:
            self._check_query(self.view, self.status, "status", ("boolean",))
        if self.since:
            if not self.status:
                self._fail("since is given without status", self.since, "name the BOOLEAN field that changes")
            self._check_query(self.view, self.since, "since", ("bigint",))
        for card in self.cards:
            self._check_card(card)

    @property
    def reads(self) -> Sequence[CatalogNode]:
        return [CatalogNode("view", name) for name in dict.fromkeys(v.name for v in self.views)]

    @property
    def writes(self) -> Sequence[CatalogNode]:
        return ()

    @property
    def views(self) -> Sequence[View]:
        """All views that it queries."""
        return (self.view, *(card.view for card in self.cards))

    def _check_card(self, card: PanelCard) -> None:
        what = f"card {card.title!r}"
        fields = _fields(card.view)
        if card.match:
            if card.values or card.elements or not card.columns:
                self._fail(f"{what} with match is not a table of rows", None, "give it columns, no values or elements")
            self._check_query(card.view, card.match, f"{what}, match")
            self._field(_fields(self.view), card.match, f"{what}, match", self.view.name)
            if card.order:
                self._check_query(card.view, card.order, f"{what}, order")
        elif card.order:
            self._fail(f"{what} has an order without match", card.order, "a key has one row: leave order out")
        elif bool(card.elements) != bool(card.columns):
            self._fail(f"{what} has only one of elements and columns", None, "give both, or values alone")
        elif not card.values and not card.elements:
            self._fail(f"{what} shows nothing", None, "give it values, elements with columns, or match with columns")
        self._check_values(card.values, fields, what, card.view.name)
        if card.elements:
            array = self._field(fields, card.elements, f"{what}, elements", card.view.name).type
            if array.kind != "array" or not array.element or array.element.kind != "struct":
                self._fail(
                    f"{what}: elements is no ARRAY<STRUCT<...>>", f"{card.elements} {array}", "take another field"
                )
            fields = {f.name: f for f in array.element.fields}
        self._check_values(card.columns, fields, what, card.elements or card.view.name)

    def _check_values(self, values: Sequence[PanelValue], fields: Mapping[str, Field], what: str, owner: str) -> None:
        for value in values:
            if value.format not in get_args(Format):
                self._fail(f"{what}: unknown format", value.format, f"take one of: {', '.join(get_args(Format))}")
            if value.format == "status" and not self.status:
                self._fail(f"{what}: the format status needs the panel's status", value.title, "declare status")
            for name in value.field_names:
                kind = self._field(fields, name, f"{what}, {value.title!r}", owner).type.kind
                if kind not in TYPES.get(value.format, (kind,)) or kind in ("array", "struct"):
                    hint = "take a field of a fitting type, or another format"
                    self._fail(f"{what}: the format {value.format} cannot show this field", f"{name} {kind}", hint)

    def _check_query(self, view: View, name: str, what: str, kinds: tuple[str, ...] = ()) -> None:
        """The view can be queried by the field, which has one value, of one of the kinds."""
        if name not in view.query_fields:
            hint = f"take one of: {', '.join(view.query_fields) or 'it has none'}"
            self._fail(f"{what}: this is no field of query_by of view {view.name}", name, hint)
        kind = _fields(view)[name].type.kind
        if kind == "map" or (kinds and kind not in kinds):
            hint = f"take a {kinds[0].upper()} field" if kinds else "take a field with one value"
            self._fail(f"{what}: the field has another type", f"{name} {kind}", hint)

    def _field(self, fields: Mapping[str, Field], name: str, what: str, owner: str) -> Field:
        if name not in fields:
            self._fail(f"{what}: {owner} has no such field", name, f"take one of: {', '.join(fields)}")
        return fields[name]

    def _fail(self, what: str, got: object, hint: str) -> NoReturn:
        raise DeclarationError(f"panel {self.name}: {what}", got=got, hint=hint)


def _fields(view: View) -> dict[str, Field]:
    return {f.name: f for f in view.fields}
