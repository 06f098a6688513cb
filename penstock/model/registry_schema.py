"""Schemas of topics that a schema registry keeps: what their formats have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from penstock.errors import DeclarationError
from penstock.model.types import Field, FieldForm, quoted


def json_text(text: object, what: str, hint: str) -> str:
    """A schema in JSON, whose text is the same however it is formatted.

    Args:
        text: The text; or what it is read as.
        what: What is wrong if it is no JSON.
        hint: What to do then.

    Raises:
        DeclarationError: It is no JSON.
    """
    try:
        return json.dumps(json.loads(text) if isinstance(text, str) else text)
    except ValueError as e:
        raise DeclarationError(what, got=f"{e}", hint=hint) from e


@dataclass(frozen=True)
class RegistrySchema(ABC):
    """The values of a topic are in the wire format of a schema registry, in one of its formats.

    That is a zero byte, the id of the writer's schema in four bytes, and the value. They are read as `text`. What a
    stream or a capture writes is registered with this schema at the release.

    Attributes:
        text: The schema.
        subject: Its name in the registry; empty for `<topic>-value`.
        kind: What the registry calls the format: `AVRO`, `JSON` or `PROTOBUF`.
        is_json: Whether a value is JSON, read as that of a topic without a registry.
    """

    text: str
    subject: str = ""
    kind: ClassVar[str]
    is_json: ClassVar[bool] = False

    @classmethod
    def read(cls, path: Path, subject: str = "") -> Self:
        """The schema in a file.

        Raises:
            DeclarationError: The file cannot be read, or is no schema of this format, or has a type that is not read.
        """
        return cls(cls.read_text(path), subject)

    @classmethod
    def read_text(cls, path: Path) -> str:
        """The text in a file.

        Raises:
            DeclarationError: The file cannot be read.
        """
        try:
            return path.read_text()
        except (OSError, UnicodeDecodeError) as e:
            what = f"{cls.__name__}: a schema cannot be read"
            raise DeclarationError(what, got=f"{path}: {e}", hint="name its file") from e

    def subject_of(self, topic: str) -> str:
        """The subject of a topic."""
        return self.subject or f"{topic}-value"

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """Its fields, as columns; one that every value has, and not null, is required.

        Raises:
            DeclarationError: It is no schema of this format, or has a type that is not read.
        """

    def form_of(self, path: Sequence[str]) -> FieldForm | None:
        """What the format knows of a field; None if there is no such field.

        Args:
            path: The names of the field and of those around it, in any case.
        """
        form, fields = None, self.fields
        for name in path:
            found = {field.name.lower(): field for field in fields}.get(name.lower())
            form, fields = (found.form, found.type.fields) if found else (None, ())
        return form

    @property
    def ddl(self) -> str:
        """The fields as Spark DDL; required ones are NOT NULL."""
        return ", ".join(f"{quoted(f.name)} {f.type.ddl}{' NOT NULL' if f.required else ''}" for f in self.fields)
