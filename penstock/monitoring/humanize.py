"""Names, durations and texts for people."""

from __future__ import annotations

from penstock.control import DriverRow


def host_name(row: DriverRow) -> str:
    """The host's name alone; a driver row tells boots and containers of one host apart."""
    return row.host.partition("/")[0]


def duration(ms: int) -> str:
    """A time span in its two largest units: `850 ms`, `12 s`, `4 min 10 s`, `3 h 5 min`, `2 d 1 h`."""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms // 1000
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def first_line(text: str | None, width: int = 200) -> str:
    """The first line of a text that is not empty, cut to a width."""
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return line if len(line) <= width else line[: width - 1] + "…"
