"""What a stream is refused for at once, with the way out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.input import Input, Table
from penstock.model.output import Output
from penstock.model.output_mode import EmitFinal, OutputMode
from penstock.model.partition import LENGTHS, PARTITIONS, SECOND
from penstock.model.topic import COMMITS

if TYPE_CHECKING:
    from penstock.model.stream import Stream


def kinds_fit(stream: Stream) -> None:
    """Each part of it is of a kind that can be meant."""
    tags = list(stream.output) if isinstance(stream.output, Mapping) else ["all"]
    for what, good, hint in (
        ("inputs", isinstance(stream.inputs, Mapping), "inputs={'name': Input(...)}"),
        ("transform", _takes_inputs(stream.transform), "a function of the inputs, by their names"),
        (
            "output_mode",
            isinstance(stream.output_mode, OutputMode),
            "output_mode=Stateless(), or another, with its lengths of time",
        ),
        ("output", isinstance(stream.output, Mapping | Output), "output=TopicOutput(...), or several by tag"),
        ("output", all(isinstance(tag, str) and tag for tag in tags), "a text as the tag of each output"),
    ):
        if not good:
            got = repr(tags if what == "output" and isinstance(stream.output, Mapping) else getattr(stream, what))
            raise DeclarationError(f"stream {stream.name}: {what} is not what it should be", got=got, hint=hint)
    if strange := [value for value in stream.inputs.values() if not isinstance(value, (Input, Table))]:
        hint = "Input(Topic(...), ...) or Table(Topic(...), ...)"
        raise DeclarationError(f"stream {stream.name}: this is no input", got=repr(strange[0]), hint=hint)


def _takes_inputs(transform: object) -> bool:
    """Whether it can be asked for its parameters, as some of Python's own functions cannot."""
    try:
        return callable(transform) and bool(signature(transform))
    except ValueError:
        return False


def numbers_fit(stream: Stream) -> None:
    """Its numbers are in their range."""
    check_kind(f"stream {stream.name}", "steps", stream.steps, int, type(None))
    check_kind(f"stream {stream.name}", "enabled", stream.enabled, bool)
    for what, least, kind in (
        ("shuffle_partitions", 1, int),
        ("every", 0, float),
        ("max_records", 0, int),
        ("max_poison", 0, int),
    ):
        value = getattr(stream, what)
        check_kind(f"stream {stream.name}", what, value, kind)
        if not value >= least:
            raise DeclarationError(
                f"stream {stream.name}: {what} is too small", got=value, hint=f"give {least} or more"
            )


def partition_fits(stream: Stream) -> None:
    """Its partitions are known, and made of windows that close."""
    if stream.partition is None:
        return
    what, mode = f"stream {stream.name}: it cannot have partitions", stream.output_mode
    if stream.partition not in PARTITIONS:
        hint = f"use one of: {', '.join(PARTITIONS)}"
        raise DeclarationError(what, got=f"partition={stream.partition!r}", hint=hint, argument="partition")
    if not isinstance(mode, EmitFinal):
        hint = "only windows that are emitted once are ever closed: use EmitFinal, or leave partition out"
        raise DeclarationError(what, got=type(mode).__name__, hint=hint, argument="partition")
    if stream.partition in LENGTHS and mode.window > LENGTHS[stream.partition]:
        got = f"windows of {mode.window} in each {stream.partition}"
        hint = 'use partition="window", or partition="day" for windows of hours'
        raise DeclarationError(what, got=got, hint=hint, argument="partition")
    if stream.partition == "window" and (mode.window % SECOND or mode.phase % SECOND):
        hint = 'a partition begins at a whole second: use partition="hour"'
        raise DeclarationError(what, got=f"windows of {mode.window}", hint=hint, argument="partition")


def no_loop(stream: Stream, written: set[str]) -> None:
    """No pattern matches a topic of `written`, those that a batch may write: each batch would make another."""
    for value in stream.sources.values():
        # The commit marker of each batch is in COMMITS.
        matched = {name for name in {*written, COMMITS.name} if value.pattern and re.fullmatch(value.pattern, name)}
        if matched:
            raise DeclarationError(
                f"stream {stream.name} reads what it writes, without end",
                got=f"{value.pattern!r} matches {', '.join(sorted(matched))}",
                hint=f"leave them out: pattern={_without(value.pattern, matched)!r}",
            )


def _without(pattern: str, names: set[str]) -> str:
    every = "|".join("penstock[.]" if name == COMMITS.name else re.escape(name) + "$" for name in sorted(names))
    return f"(?!{every})(?:{pattern})"
