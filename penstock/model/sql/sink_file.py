"""Sinks read from their files, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.model.declaration import list_files
from penstock.model.mask import Mask, check_masks_fit, check_not_masked
from penstock.model.sink import POINT_STORES, Sink
from penstock.model.sql.lexer import line_and_column, read_sql_file, tokenize_sql
from penstock.model.sql.parser import parse_one
from penstock.model.sql.sink_clauses import TARGETS, SinkClauses
from penstock.model.sql.sink_select import rewrite_select

# What Spark opens and closes; in a text a backslash takes the next character with it, but in a raw one.
QUOTED = (
    r"--[^\n]*|/\*.*?\*/|[rR]'[^']*'|[rR]\"[^\"]*\"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`"
)  # fmt: skip


def load(folder: Path) -> dict[str, Sink]:
    """The sinks of a folder, by name; none if there is no folder."""
    return {path.stem: read(path) for path in list_files(folder, ".sql")}


def read(path: Path) -> Sink:
    """The sink that a file declares; DeclarationError with file, line and column if it is none."""
    return parse(read_sql_file(path), path)


def parse(text: str, path: Path) -> Sink:
    """As `read`, from the file's text."""
    clauses = SinkClauses(text, path, tokenize_sql(text, path, "spark", QUOTED))
    given = clauses.read()
    _fits(clauses, given)
    sql = clauses.select()
    rewritten = rewrite_select(clauses, sql, [read.topic for read in given["reads"]])
    locations = {clause: line_and_column(text, token.start) for clause, token in clauses.clause_tokens.items()}
    locations["SELECT"] = line_and_column(text, clauses.begins)
    return Sink(name=path.stem, path=path, sql=sql, rewritten=rewritten, locations=locations, **given)


def _fits(clauses: SinkClauses, given: dict[str, Any]) -> None:
    """What stands in one clause goes with the others."""
    if given["verb"] == "insert":
        given["tombstones"] = "ignore"
    _masks_fit(clauses, given)
    makes_points = given["store"] in POINT_STORES
    if makes_points and (len(given["target"]) > 1) == ("measurement" in given):
        hint = f"write {TARGETS[given['store']]}"
        got = ".".join(given["target"])
        raise clauses.error("a measurement is named once", got, hint, clauses.clause_tokens["INTO"])
    if makes_points and given["verb"] == "insert":
        hint = "write UPSERT INTO, with VERSION NONE if no point ever changes"
        raise clauses.error(
            "a point has no id but its measurement, tags and time", "INSERT", hint, clauses.clause_tokens["INTO"]
        )
    if "tombstone_key" in given:
        time = (given["time"],) if "time" in given else ()
        keys = given.get("key") or (*filter(None, (given.get("measurement"),)), *given.get("tags", ()), *time)
        if given["tombstones"] == "ignore" or len(keys) != len(given["tombstone_key"]):
            of = ", ".join(keys) or "the record's key, which needs no expression"
            hint = f"write one expression for each of: {of}" if keys else "leave them out"
            got = f"{len(given['tombstone_key'])} for {of}, TOMBSTONES {given['tombstones'].upper()}"
            raise clauses.error(
                "these do not stand for the columns of the id", got, hint, clauses.clause_tokens["TOMBSTONES"]
            )


def _masks_fit(clauses: SinkClauses, given: dict[str, Any]) -> None:
    """What a store has to read, or shows as it is, is not masked; of the columns of the id none is dropped."""
    masks: tuple[Mask, ...] = given.get("mask", ())
    if not masks:
        return
    what, suffix = "the sink", given.get("suffix", ("", ""))[1]
    plain = {
        "VERSION": (given.get("version", ""),), "SUFFIX": (suffix,), "TIME": (given.get("time", ""),),
        "MEASUREMENT": (given.get("measurement", ""),),
        # A version is made of the event time, unless a column gives it.
        "EVENT TIME": () if given.get("version") else _columns_of(read.event_time for read in given["reads"]),
    }  # fmt: skip
    named = {
        "KEY": given.get("key", ()), "TAGS": given.get("tags", ()), "FIELDS": given.get("fields", {}),
        "INDEX": _flat(given["indexes"]), "UNIQUE INDEX": _flat(given["unique_indexes"]),
    }  # fmt: skip
    with clauses.placed("MASK"):
        check_masks_fit(what, masks)
        uses = [(f"the column of {clause}", name) for clause, names in plain.items() for name in names if name]
        check_not_masked(what, masks, uses, "mask another column, or select the value under another name")
        dropped = [mask for mask in masks if mask.drops_column]
        uses = [(f"a column of {clause}", name) for clause, names in named.items() for name in names]
        check_not_masked(what, dropped, uses, "hash or encrypt it, or leave it out of that clause")


def _flat(columns: Iterable[Sequence[str]]) -> list[str]:
    return [name for names in columns for name in names]


def _columns_of(expressions: Iterable[str]) -> list[str]:
    """The columns that expressions name, as far as they can be read here."""
    names: list[str] = []
    for text in filter(None, expressions):
        try:
            names += [column.parts[0].name for column in parse_one(text, "spark").find_all(exp.Column)]
        except SqlglotError:
            continue
    return names
