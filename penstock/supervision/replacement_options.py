"""The options of a replacement, as a command and a form give them."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.errors import ReplacementRefused

EQUAL, EXCEPT = "equal", "equal-except:"


class WriteAtCut(StrEnum):
    """Which rows that the running version wrote otherwise are written at the cut."""

    differing = "differing"
    all = "all"
    none = "none"


class CutMode(StrEnum):
    """When the cut begins: as soon as the new version has caught up, or when an operator asks for it."""

    auto = "auto"
    manual = "manual"


def replacement_options(
    *,
    begin: datetime | None = None,
    rate: float | None = None,
    write: str = "differing",
    expect: str = "",
    cut: str = "auto",
    in_place: bool = False,
    archive: bool = True,
) -> dict[str, Any]:
    """The options of a replacement, as its row has them.

    Args:
        begin: The time of the first record that the new version reads, with a zone; None: what its state needs.
        rate: Records/s that it reads at most while it catches up; None: as fast as it can.
        write: See `WriteAtCut`.
        expect: Empty, `equal`, or `equal-except:` with columns that may differ, separated by commas; a replacement that
            breaks it stops.
        cut: See `CutMode`.
        in_place: Whether the running version is stopped first, on a machine without room for both.
        archive: Whether the archive of its input is read, where there is one.

    Raises:
        ReplacementRefused: One of them is invalid.
    """
    if begin is not None and begin > datetime.now(UTC):
        raise ReplacementRefused(
            "a new version cannot begin to read in the future",
            got=f"{begin:%Y-%m-%dT%H:%M:%S%z}",
            hint="give a time in UTC that has passed, or none for what its state needs",
        )
    if rate is not None and not 0 < rate < float("inf"):
        raise ReplacementRefused(
            "this is no rate", got=rate, hint="give records per second, or none to read as fast as it can"
        )
    for name, value, allowed in (("write", write, WriteAtCut), ("cut", cut, CutMode)):
        if value not in list(allowed):
            raise ReplacementRefused(
                f"a replacement has no such {name}", got=value, hint=f"take one of {', '.join(allowed)}"
            )
    return {
        "from": None if begin is None else round(begin.timestamp() * 1000), "rate": rate, "write": str(write),
        "expect": _expectation(expect.strip()), "cut": str(cut), "in_place": in_place,
        "archive": archive,
    }  # fmt: skip


def _expectation(text: str) -> dict[str, Any] | None:
    if text in ("", EQUAL):
        return {"equal": True, "except": []} if text else None
    columns = [column.strip() for column in text.removeprefix(EXCEPT).split(",")]
    if not text.startswith(EXCEPT) or not all(columns):
        raise ReplacementRefused(
            "this is no expectation of a replacement",
            got=text,
            hint=f"write {EQUAL}, or {EXCEPT}COLUMN,COLUMN for columns that may differ",
        )
    return {"equal": True, "except": list(dict.fromkeys(columns))}


def expectation_text(expect: dict[str, Any] | None) -> str:
    """An expectation as it is written in a command; `none` if there is none."""
    if not expect:
        return "none"
    return EXCEPT + ",".join(expect["except"]) if expect["except"] else EQUAL
