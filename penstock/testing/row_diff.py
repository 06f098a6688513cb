"""The difference between the records that came and those that were expected, as a table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

Row = tuple[str | None, str | None]
"""Key and value."""

# Characters of a cell; a table with longer ones has a line for each cell.
WIDTH = 60
FRACTION = re.compile(r"-?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)")
STRING_OR_FRACTION = re.compile(rf'("(?:[^"\\]|\\.)*"|{FRACTION.pattern})')
NONE = "-"


def diff(actual: Sequence[Row], expected: Sequence[Row], title: str = "key") -> str:
    """Lines that say what is missing, unexpected and different; empty if both have the same records, in any order.

    title: what the first part of a row is.
    """
    extra, missing = list(actual), list[Row]()
    for row in expected:
        same = next((one for one in extra if one[0] == row[0] and is_close(one[1], row[1])), None)
        if same is None:
            missing.append(row)
        else:
            extra.remove(same)
    lines: list[tuple[str, str, str, str]] = []
    for key, value in missing:
        other = next((one for one in extra if one[0] == key), None)
        if other is None:
            lines.append(("missing", _text(key), _text(value), NONE))
        else:
            extra.remove(other)
            lines.append(("different", _text(key), _text(value), _text(other[1])))
    lines += [("unexpected", _text(key), NONE, _text(value)) for key, value in extra]
    return _table(lines, title)


def is_close(actual: str | None, expected: str | None) -> bool:
    """Whether texts are equal, but for the last digits of fractions in JSON: the order of additions varies."""
    if actual == expected or actual is None or expected is None:
        return actual == expected
    if not (_is_json(actual) and _is_json(expected)):
        return False
    parts, others = STRING_OR_FRACTION.split(actual), STRING_OR_FRACTION.split(expected)
    return len(parts) == len(others) and all(map(_is_close_part, parts, others))


def _is_close_part(one: str, other: str) -> bool:
    are_fractions = FRACTION.fullmatch(one) and FRACTION.fullmatch(other)
    return one == other or (bool(are_fractions) and math.isclose(float(one), float(other), rel_tol=1e-12))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _text(text: str | None) -> str:
    return "null" if text is None else text


def _fields(one: str, other: str) -> str:
    """The fields in which two JSON objects differ, as the end of a line."""
    try:
        a, b = json.loads(one), json.loads(other)
    except ValueError:
        return ""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return ""
    names = [name for name in {**a, **b} if name not in a or name not in b or a[name] != b[name]]
    return f", in {', '.join(names)}" if names else ", in the order or form of fields"


def _table(lines: Sequence[tuple[str, str, str, str]], title: str) -> str:
    if not lines:
        return ""
    titles = ("", title, "expected", "actual")
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    if max(widths[1:]) <= WIDTH:
        rows = ("  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)) for row in (titles, *lines))
        return "\n".join(row.rstrip() for row in rows)
    return "\n".join(
        f"{what}{_fields(expected, actual)}\n    {title:<8} {key}\n    expected {expected}\n    actual   {actual}"
        for what, key, expected, actual in lines
    )
