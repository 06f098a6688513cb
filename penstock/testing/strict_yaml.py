"""YAML as data of JSON, with the line of each part. Duplicate keys, tags and types that JSON lacks are errors.

Texts are read as YAML 1.2 reads them: `no` and `2026-01-31` are texts. `!ms TIME` is a time as epoch ms.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from penstock.errors import DeclarationError

Place = tuple[str | int, ...]
"""Keys and indexes from the top of a document to a part of it."""

MS, UNTAGGED = "!ms", "untagged"
NULL, BOOLEAN = re.compile(r"|~|null|Null|NULL"), re.compile(r"true|True|TRUE|false|False|FALSE")
INTEGER, FLOAT = re.compile(r"[-+]?[0-9]+"), re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # its module is not typed
    """Knows no implicit types: `_scalar` decides."""

    def resolve(self, *_: object) -> str:
        """The tag of what has none, which is not that of `!!str`."""
        return UNTAGGED


class YamlDocument:
    """A document and where its parts are.

    Args:
        path: Its file.

    Raises:
        DeclarationError: It is no such YAML; names file and line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Place, int] = {}
        try:
            node = yaml.compose(path.read_text(), Loader=_Loader)
        except (yaml.YAMLError, UnicodeDecodeError) as e:
            mark = getattr(e, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise DeclarationError(f"{path.name}{line}: this is not YAML", got=getattr(e, "problem", e)) from e
        if node is None:
            raise DeclarationError(f"{path.name}: the file is empty")
        self.data = self._value(node, (), ())

    def line(self, place: Place) -> int:
        """The line of a part, or of the nearest part that contains it."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def error(self, line: int, what: str, got: object = None, hint: str = "") -> DeclarationError:
        """An error that names the file and a line."""
        return DeclarationError(f"{self.path.name}:{line}: {what}", got=got, hint=hint)

    def _value(self, node: yaml.Node, place: Place, above: tuple[yaml.Node, ...]) -> Any:
        self._lines.setdefault(place, node.start_mark.line + 1)
        if any(node is one for one in above):
            raise self.error(node.start_mark.line + 1, "an alias contains itself")
        above = (*above, node)
        self._check_tag(node, MS if isinstance(node, yaml.ScalarNode) else UNTAGGED)
        if isinstance(node, yaml.MappingNode):
            values: dict[str, Any] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise self.error(line, "a key is a text")
                self._check_tag(key)
                if key.value == "<<" and not key.style:
                    raise self.error(line, "a mapping is not merged into another", key.value, "write out its keys")
                if key.value in values:
                    raise self.error(line, "a key is there twice", key.value)
                self._lines[*place, key.value] = line
                values[key.value] = self._value(value, (*place, key.value), above)
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self._value(one, (*place, n), above) for n, one in enumerate(node.value)]
        return self._scalar(node)

    def _check_tag(self, node: yaml.Node, known: str = UNTAGGED) -> None:
        if node.tag not in (known, UNTAGGED):
            hint = "leave the tag out; there is only !ms, for a time as epoch ms"
            raise self.error(node.start_mark.line + 1, "this tag is unknown", node.tag, hint)

    def _scalar(self, node: yaml.Node) -> Any:
        text: str = node.value
        if node.tag == MS:
            try:
                return epoch_ms(text)
            except ValueError as e:
                raise self.error(node.start_mark.line + 1, "!ms needs a time", text, "2026-01-31T12:00:00Z") from e
        if node.style:
            return text
        if NULL.fullmatch(text):
            return None
        if BOOLEAN.fullmatch(text):
            return text.lower() == "true"
        if INTEGER.fullmatch(text):
            return int(text)
        return float(text) if FLOAT.fullmatch(text) else text


def epoch_ms(time: object) -> int:
    """Epoch ms of a time in ISO 8601, in UTC if it names no zone, or of a whole number; ValueError for another."""
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    if not isinstance(time, str):
        raise ValueError("a time is epoch ms, or a text as 2026-01-31T12:00:00Z")
    at = datetime.fromisoformat(time)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
