"""Errors of a stream in SQL that arise where streams of Python have the same: in SQL's words, with their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.sql.lexer import UNITS

if TYPE_CHECKING:
    from penstock.model.sql_stream import SqlStream

DURATION = re.compile(r"datetime\.timedelta\((.*?)\)")
# By a pattern of what stands in Python.
TRANSLATIONS: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"(Emit\w+)\(window=\.\.\., grace=\.\.\.\)": r"\1 WINDOW 1 MINUTE GRACE 10 SECONDS",
    r"(Emit\w+)\(window=(.+?), phase=(.+?)(?:, \.\.\.)?\)": r"\1 WINDOW \2 PHASE \3",
    r"(Emit\w+)\((\w+)=\.\.\.\)": lambda m: f"the {m[2].upper()} of {m[1]}",
    r"KeyedState\(tick=timedelta\(seconds=1\)\)": "TICK 1 SECOND",
    r"KeyedState\(tick=(.+?)\)": r"TICK \1",
    r"KeyedState\(grace=\.\.\.\)": "FOLD",
    r"first_step=\.\.\.": "LATE BY",
    r"StreamJoin\(within=\.\.\.(?:, grace=\.\.\.)?\)": "JOIN WITHIN 10 MINUTES GRACE 1 MINUTE",
    r"EmitFinal": "EMIT FINAL",
    r"EmitChanges": "EMIT CHANGES",
    r"StreamJoin": "JOIN",
    r"KeyedState(?:\(\))?": "FOLD",
    r"the output mode Stateless": "no EMIT, JOIN or FOLD",
    r"Stateless": "no EMIT, JOIN or FOLD",
    r"EMIT CHANGES or Timers": "EMIT CHANGES or FOLD",
    r"\bsteps=(\d+)": r"STEPS \1",
    r"\bleave steps out": "leave STEPS out",
    r'\bpartition="?(hour|day|window)"?': lambda m: f"PARTITION BY {m[1].upper()}",
    r"\bleave partition out": "leave PARTITION BY out",
    r"state with timers \(Timers\)": "a FOLD with TIMER",
    r'F\.window\("event_time", "1 day", startTime="5 hours"\)': "window(event_time, '1 day', '1 day', '5 hours')",
    r'F\.window\("event_time", \.\.\.\)': "window(event_time, '1 minute')",
    r"\ba Fold\b": "a FOLD",
    r"Fold\(restore_sql=\.\.\.\)": "RESTORE AS (SELECT ... FROM output)",
    r"Fold\(input_retention=\.\.\.\)": "INPUT RETENTION 5 HOURS",
    r"Fold\(timer_field=\.\.\.\)": "TIMER field",
    r"`?restore_sql`?": "RESTORE",
    r"`?input_retention`?": "INPUT RETENTION",
    r"Topic\(\.\.\., compacted=True\)": "topic: COMPACTED",
    r"\b(key|value)=\('(\w+)',\)": lambda m: f"{m[1].upper()} ({m[2]})",
    r"\bgive the output a key\b": "write KEY",
    r'\bevent_time="(.+?)"': r"EVENT TIME \1",
    r"\ba timedelta\b": "a duration",
    r"\bits transform\b|\bthe transform\b": "the SELECT",
    r"\bwithout tick\b": "without TICK",
    r"\bhas a tick\b": "has a TICK",
    r"\bleave tick out\b": "leave TICK out",
}


def in_sql(text: str) -> str:
    """A text of an error with SQL's words for Python's."""
    text = DURATION.sub(lambda m: _duration(m[1]), text)
    for pattern, words in TRANSLATIONS.items():
        text = re.sub(pattern, words, text)
    return text


def _duration(arguments: str) -> str:
    """A duration as SQL writes it. arguments: those of a timedelta, as `days=1, seconds=60`."""
    pairs = (one.split("=") for one in arguments.split(", ") if "=" in one)
    duration = timedelta(**{name: float(value) for name, value in pairs})
    if not duration:
        return "0 SECONDS"
    whole = ((name, unit) for name, unit in reversed(UNITS.items()) if not duration % unit)
    name, unit = next(whole, ("MILLISECOND", UNITS["MILLISECOND"]))
    return f"{duration / unit:g} {name}{'' if duration == unit else 'S'}"


@contextmanager
def told_in_sql(declared: SqlStream | None, clause: str = "SELECT") -> Iterator[None]:
    """Say what is wrong with a stream in SQL's words, and where it stands, unless the error says it.

    Args:
        declared: The stream; None for one in Python, whose errors stay as they are.
        clause: The clause that an error is of if it names no argument of the stream.
    """
    try:
        yield
    except DeclarationError as e:
        if declared is None:
            raise
        what, got = in_sql(e.what), None if e.got is None else in_sql(str(e.got))
        if not e.what.startswith(f"{declared.path}:"):
            what = f"{declared.at_argument(e.argument, clause)}: {what}"
        raise DeclarationError(what, got=got, hint=in_sql(e.hint)) from e
