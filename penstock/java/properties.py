"""Files of settings in the form of Java's `Properties`."""

from __future__ import annotations

from collections.abc import Mapping

ESCAPED = str.maketrans({c: f"\\{c}" for c in "\\ :=#!"} | {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


def properties_text(settings: Mapping[str, str]) -> str:
    """Settings as `java.util.Properties` reads them, a line each.

    It is ASCII, as some read such a file as UTF-8 and others, such as Kafka, as Latin-1.
    """
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    # Characters beyond 16 bits are two halves to Java.
    halves = text.translate(ESCAPED).encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(halves[at : at + 2]) for at in range(0, len(halves), 2))
    return "".join(chr(unit) if unit < 0x80 else f"\\u{unit:04x}" for unit in units)
