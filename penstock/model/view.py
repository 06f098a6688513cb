"""Views: the latest value of each key of a topic, for queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from penstock.errors import DeclarationError
from penstock.model.declaration import CatalogNode, Kind, caller_location, check_name
from penstock.model.output import Columns
from penstock.model.topic import OF_TOPIC, Topic, reader_fields, reader_schema, topic_name

if TYPE_CHECKING:
    from penstock.model.types import Field

# The app of all views; each instance is an app of its own, `views-1` and so on.
VIEWS_APP = "views"
# Value types of a map by whose entries a view can be queried: each value has one text.
MAP_VALUES = ("string", "boolean", "tinyint", "smallint", "int", "bigint")


class ServedView(NamedTuple):
    """A view in one instance: what its driver runs, under a name of its own."""

    view: View
    instance: int

    @property
    def name(self) -> str:
        return f"{self.view.name}@{self.instance}"

    @property
    def app(self) -> str:
        return views_app(self.instance)


def views_app(instance: int) -> str:
    """The app of an instance, counted from 1."""
    return f"{VIEWS_APP}-{instance}"


def views_instance(app: str) -> int | None:
    """The instance that an app is; None if it serves no views."""
    family, _, number = app.rpartition("-")
    return int(number) if family == VIEWS_APP and number.isdecimal() and not number.startswith("0") else None


@dataclass(frozen=True)
class View:
    """A compacted topic served by queries: the latest value of each key, by REST.

    Attributes:
        name: unique.
        topic: a compacted topic, or the name of one that is declared elsewhere, such as a capture's.
        schema: Spark DDL of the JSON value, without a field `key`, which is the record's key. If left out, the topic's.
        query_by: fields of the schema by which rows can be found, beside the key: of scalar types, or maps of text,
            integers or booleans, which are queried by their entries. The most selective first, a time last.
        location: where it is declared.
    """

    name: str
    topic: Topic | str
    schema: str = OF_TOPIC
    query_by: Columns = ()
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "view"
    app: ClassVar[str] = VIEWS_APP

    def __post_init__(self) -> None:
        check_name("view", self.name)
        topic = self.topic if isinstance(self.topic, Topic) else None
        if topic:
            self.check_topic(topic)
        object.__setattr__(self, "schema", reader_schema(f"view {self.name}", topic, self.schema))
        if not self.schema:
            raise DeclarationError(
                f"view {self.name} has no schema",
                got=f"topic {topic_name(self.topic)}",
                hint='give schema="name STRING", or a Topic that declares its schema',
            )
        self._check_query_by()

    def check_topic(self, topic: Topic) -> None:
        """DeclarationError if the topic, as it is declared, cannot be served."""
        if not topic.compacted:
            raise DeclarationError(
                f"view {self.name}: a view's topic must be compacted",
                got=f"topic {topic.name}",
                hint="declare it compacted=True, or serve a topic that holds the latest value of each key",
            )

    @property
    def query_fields(self) -> Sequence[str]:
        return (self.query_by,) if isinstance(self.query_by, str) else self.query_by

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of its values."""
        of_topic = self.topic.registry_schema if isinstance(self.topic, Topic) else None
        return reader_fields(f"view {self.name}", of_topic or self.schema)

    def _check_query_by(self) -> None:
        if any(f.name.lower() == "key" for f in self.fields):
            raise DeclarationError(
                f"view {self.name} has a field of the name that its key has",
                got=self.schema,
                hint="leave the field `key` out: each row has the record's key under that name",
            )
        able = [f.name for f in self.fields if _queryable(f)]
        for name in self.query_fields:
            if name not in able or self.query_fields.count(name) > 1 or "." in name:
                raise DeclarationError(
                    f"view {self.name} cannot be queried by this field",
                    got=name,
                    hint=f"take each once, of these: {', '.join(able) or 'none is of a plain type'}",
                )

    @property
    def reads(self) -> Sequence[CatalogNode]:
        return (CatalogNode("topic", topic_name(self.topic)),)

    @property
    def writes(self) -> Sequence[CatalogNode]:
        return ()


def _queryable(field: Field) -> bool:
    kind, element = field.type.kind, field.type.element
    if kind == "map":
        return element is not None and element.kind in MAP_VALUES
    return kind not in ("array", "struct", "binary", "decimal")
