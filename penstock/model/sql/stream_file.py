"""Streams in SQL read from their files, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from penstock.model.declaration import list_files
from penstock.model.sql.lexer import line_and_column, read_sql_file, tokenize_sql
from penstock.model.sql.parser import parse_one
from penstock.model.sql.sink_file import QUOTED
from penstock.model.sql.stream_clauses import StreamClauses
from penstock.model.sql_stream import SqlFold, SqlStream, StreamRead
from penstock.model.topic import Topic
from penstock.model.types import quoted

NAME_COLUMNS = "name the columns by VALUE (...)"


def load(folder: Path) -> list[SqlStream]:
    """The streams of a folder; none if there is no folder."""
    return [read(path) for path in list_files(folder, ".sql")]


def read(path: Path) -> SqlStream:
    """The stream that a file declares; DeclarationError with file, line and column if it is none."""
    return parse(read_sql_file(path), path)


def parse(text: str, path: Path) -> SqlStream:
    """As `read`, from the file's text."""
    clauses = StreamClauses(text, path, tokenize_sql(text, path, "spark", QUOTED))
    values = clauses.read()
    sql = clauses.select()
    _check_columns(clauses, sql, values)
    if "value" not in values:
        values["value"] = _other_columns(clauses, sql, values.get("key", ()))
    _check_all_is_read(clauses, sql, values["reads"], values.get("folds", ()))
    with clauses.placed("INTO"):
        target = Topic(**values.pop("topic"))
    locations = {clause: line_and_column(text, token.start) for clause, token in clauses.clause_tokens.items()}
    locations["SELECT"] = line_and_column(text, clauses.begins)
    return SqlStream(name=path.stem, path=path, target=target, sql=sql, locations=locations, **values)


def _other_columns(clauses: StreamClauses, sql: str, key: Any) -> tuple[str, ...]:
    """The columns of the SELECT that are not of the key."""
    at = clauses.begins
    try:
        query = parse_one(sql, "spark")
    except SqlglotError as e:
        first = e.errors[0] if isinstance(e, ParseError) and e.errors else {}
        before, word = first.get("start_context") or "", first.get("highlight") or ""
        if sql[: len(before)] == before:
            at += len(before)
        got = word or str(e).split("\n")[0]
        raise clauses.error_at("the SELECT is not understood", got, f"correct it, or {NAME_COLUMNS}", at) from e
    if not isinstance(query, exp.Query):
        raise clauses.error_at("AS must be followed by a SELECT", sql.split()[0], "write SELECT ... FROM", at)
    names = query.named_selects
    if not all(names) or "*" in names:
        got = "*" if "*" in names else "a column without a name"
        raise clauses.error_at("the columns of the SELECT are not known", got, NAME_COLUMNS, at)
    of_key = {key.lower()} if isinstance(key, str) else {name.lower() for name in key}
    columns = tuple(name for name in names if name.lower() not in of_key)
    if not columns:
        raise clauses.error_at("no column is left for the value", ", ".join(names), NAME_COLUMNS, at)
    return columns


def _check_all_is_read(clauses: StreamClauses, sql: str, reads: Sequence[StreamRead], folds: Sequence[SqlFold]) -> None:
    """The SELECT or a fold reads each topic, and the SELECT or a later fold each fold. Spark's plan says how often."""
    read = [_read_names(clauses, one.source) if one.is_select else {one.source.lower()} for one in folds]
    read.append(_read_names(clauses, sql))
    for topic in (one.topic for one in reads):
        if topic.lower() not in set[str]().union(*read):
            hint = f"write FROM {quoted(topic)}, or leave its READ out"
            raise clauses.error("nothing reads this topic", topic, hint, clauses.clause_tokens[f"READ {topic}"])
    for number, name in enumerate(one.fold.name for one in folds):
        if name not in set[str]().union(*read[number + 1 :]):
            hint = f"write FROM {quoted(name)}, or leave the fold out"
            raise clauses.error(
                "nothing reads the rows of this fold", name, hint, clauses.clause_tokens[f"FOLD {name}"]
            )


def _read_names(clauses: StreamClauses, sql: str) -> set[str]:
    """What a SELECT reads, in lower case; of one that is not understood, every word."""
    try:
        return {table.name.lower() for table in parse_one(sql, "spark").find_all(exp.Table)}
    except SqlglotError:
        return {token.text.lower() for token in tokenize_sql(sql, clauses.path, "spark", QUOTED)}


def _check_columns(clauses: StreamClauses, sql: str, values: Mapping[str, Any]) -> None:
    """KEY, VALUE and rules name columns of the SELECT, as far as these are known without Spark."""
    try:
        query = parse_one(sql, "spark")
    except SqlglotError:
        return
    names = query.named_selects if isinstance(query, exp.Query) else []
    if not names or not all(names) or "*" in names:
        return
    known = {name.lower() for name in names}
    of_clauses = {clause: values.get(clause.lower(), ()) for clause in ("KEY", "VALUE")}
    named = {clause: [one] if isinstance(one, str) else one for clause, one in of_clauses.items()}
    named |= {f"EXPECT {one.name}": one.columns for one in values["expectations"]}
    for clause, columns in named.items():
        if missing := [column for column in columns if column.lower() not in known]:
            what = f"{'a rule' if clause.startswith('EXPECT') else clause} names a column that is not selected"
            hint = f"take one of: {', '.join(names)}"
            raise clauses.error(what, missing[0], hint, clauses.clause_tokens[clause])
