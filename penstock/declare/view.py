"""What a view is: the latest value of each key of a topic, to be asked for by queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.declare.declared import Kind, Place, check_name, here
from penstock.declare.outputs import Columns
from penstock.declare.topic import Topic, name_of
from penstock.errors import DeclarationError


@dataclass(frozen=True)
class View:
    """A compacted topic served by queries. Declared only: nothing serves it in this version.

    topic: a compacted topic, or the name of one that is declared elsewhere, such as a capture's.
    schema: Spark DDL of the JSON value.
    by: the field of the schema, or several, by which it can be asked, beside the record's key; of plain types.
    """

    name: str
    topic: Topic | str
    schema: str
    by: Columns = ()
    where: str = field(default_factory=here, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "view"
    app: ClassVar[None] = None

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
                fix="declare it compacted=True, or serve a topic that holds the latest value of each key",
            )

    def _by_fits(self) -> None:
        # A SQL parser is more than most projects need to load.
        from penstock.declare import schema

        fields = {f.name: f.type.kind for f in schema.schema(self.schema, f"view {self.name}")}
        plain = [name for name, kind in fields.items() if kind not in ("array", "map", "struct")]
        for name in (self.by,) if isinstance(self.by, str) else self.by:
            if name not in plain:
                raise DeclarationError(
                    f"view {self.name} cannot be asked by this field",
                    got=name,
                    fix=f"take one of the schema's: {', '.join(plain) or 'none is of a plain type'}",
                )

    @property
    def reads(self) -> Sequence[Place]:
        return (Place("topic", name_of(self.topic)),)

    @property
    def writes(self) -> Sequence[Place]:
        return ()
