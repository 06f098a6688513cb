"""What a backfill is: what was missed, or has to be computed again, brought to where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.declare.archive import Archive
from penstock.declare.declared import Kind, Place, check_name, here
from penstock.declare.stream import Stream
from penstock.declare.topic import Topic, name_of
from penstock.errors import DeclarationError


@dataclass(frozen=True)
class Backfill:
    """Declared only: nothing runs it in this version.

    source: what it reads: a declared archive, or the name of a source outside the project.
    target: what it fills: a topic, by itself or by its name, or the state of a stream; declared in the project.
    description: what it is for, in a sentence.
    """

    name: str
    source: Archive | str
    target: Topic | Stream | str
    description: str = ""
    where: str = field(default_factory=here, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "backfill"
    app: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_name("backfill", self.name)
        if not isinstance(self.source, Archive | str) or not self.source:
            fix = "give an Archive, or the name of a source"
            raise DeclarationError(f"backfill {self.name} has no source", got=repr(self.source), fix=fix)
        if not isinstance(self.target, Topic | Stream | str) or not self.target:
            fix = "give a Topic, a topic's name, or a Stream"
            raise DeclarationError(f"backfill {self.name} has no target", got=repr(self.target), fix=fix)

    @property
    def reads(self) -> Sequence[Place]:
        if isinstance(self.source, Archive):
            return (Place(self.source.kind, self.source.name),)
        return (Place("source", self.source),)

    @property
    def writes(self) -> Sequence[Place]:
        if isinstance(self.target, Stream):
            return (Place(self.target.kind, self.target.name),)
        return (Place("topic", name_of(self.target)),)
