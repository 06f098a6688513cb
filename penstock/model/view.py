"""What a view is: the latest value of each key of a topic, to be asked for by queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from penstock.errors import DeclarationError
from penstock.model.declaration import CatalogNode, Kind, caller_location, check_name
from penstock.model.output import Columns
from penstock.model.topic import Topic, topic_name

if TYPE_CHECKING:
    from penstock.model.schema import Field

# What all views run in; each instance is an app of its own, `views-1` and so on.
APP = "views"
# Of a map that a view is asked by: what has one text.
TEXTS = ("string", "boolean", "tinyint", "smallint", "int", "bigint")


class Served(NamedTuple):
    """A view as one instance serves it: what its driver runs, under a name of its own."""

    view: View
    instance: int

    @property
    def name(self) -> str:
        return f"{self.view.name}@{self.instance}"

    @property
    def app(self) -> str:
        return app_of(self.instance)


def app_of(instance: int) -> str:
    """The app of an instance, counted from 1."""
    return f"{APP}-{instance}"


def instance_of(app: str) -> int | None:
    """The instance that an app is; None if it serves no views."""
    family, _, number = app.rpartition("-")
    return int(number) if family == APP and number.isdecimal() and not number.startswith("0") else None


@dataclass(frozen=True)
class View:
    """A compacted topic served by queries: the latest value of each key, by REST.

    topic: a compacted topic, or the name of one that is declared elsewhere, such as a capture's.
    schema: Spark DDL of the JSON value; it has no field of the name `key`, which the record's key has.
    by: the field of the schema, or several, by which it can be asked, beside the record's key: of plain types, or maps
        of text, whole numbers or booleans, which are asked by their entries. First those that narrow most; a time last.
    """

    name: str
    topic: Topic | str
    schema: str
    by: Columns = ()
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "view"
    app: ClassVar[str] = APP

    def __post_init__(self) -> None:
        check_name("view", self.name)
        if isinstance(self.topic, Topic):
            self.check(self.topic)
        self._by_fits()

    def check(self, topic: Topic) -> None:
        """DeclarationError if the topic, as it is declared, cannot be served."""
        if not topic.compacted:
            raise DeclarationError(
                f"view {self.name}: a view's topic must be compacted",
                got=f"topic {topic.name}",
                hint="declare it compacted=True, or serve a topic that holds the latest value of each key",
            )

    @property
    def asked_by(self) -> Sequence[str]:
        return (self.by,) if isinstance(self.by, str) else self.by

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of its values."""
        # A SQL parser is more than most projects need to load.
        from penstock.model import schema

        return schema.schema(self.schema, f"view {self.name}")

    def _by_fits(self) -> None:
        if any(f.name.lower() == "key" for f in self.fields):
            raise DeclarationError(
                f"view {self.name} has a field of the name that its key has",
                got=self.schema,
                hint="leave the field `key` out: each row has the record's key under that name",
            )
        able = [f.name for f in self.fields if _askable(f)]
        for name in self.asked_by:
            if name not in able or self.asked_by.count(name) > 1 or "." in name:
                raise DeclarationError(
                    f"view {self.name} cannot be asked by this field",
                    got=name,
                    hint=f"take each once, of these: {', '.join(able) or 'none is of a plain type'}",
                )

    @property
    def reads(self) -> Sequence[CatalogNode]:
        return (CatalogNode("topic", topic_name(self.topic)),)

    @property
    def writes(self) -> Sequence[CatalogNode]:
        return ()


def _askable(field: Field) -> bool:
    kind, element = field.type.kind, field.type.element
    if kind == "map":
        return element is not None and element.kind in TEXTS
    return kind not in ("array", "struct", "binary")
