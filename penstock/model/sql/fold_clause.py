"""The FOLD clause of a stream in SQL; `penstock.model.sql_stream` says what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from penstock.errors import DeclarationError
from penstock.model.declaration import moved_location
from penstock.model.fold import QUERY_NAMES, Fold, unknown_variable, variables_hint
from penstock.model.schema import schema
from penstock.model.sql.clause_reader import ClauseReader
from penstock.model.sql.lexer import QUOTED, line_and_column
from penstock.model.sql_stream import SqlFold


class FoldPart(NamedTuple):
    """A part of FOLD.

    Attributes:
        attribute: Of `Fold`, or `source`.
        second: The word that follows the first, if it is not the part's own.
        example: How it is written, if it must be there.
    """

    attribute: str
    second: str = ""
    example: str = ""


FOLD_PARTS = {
    "FROM": FoldPart("source", example="FROM orders, or FROM (SELECT ...)"),
    "BY": FoldPart("key", example="BY (shop)"),
    "STATE": FoldPart("state_schema", "(", "STATE (total DOUBLE)"),
    "UPDATE": FoldPart("update_sql", "AS", "UPDATE AS (SELECT ... FROM records LEFT JOIN state USING (shop))"),
    "ROWS": FoldPart("output_schema", "(", "ROWS (shop STRING, total DOUBLE)"),
    "EMIT": FoldPart("emit_sql", "AS", "EMIT AS (SELECT ... FROM folded)"),
    "RESTORE": FoldPart("restore_sql", "AS"),
    "TIMER": FoldPart("timer_field"),
    "EXPIRES": FoldPart("expires_when", "WHEN"),
    "INPUT": FoldPart("input_retention", "RETENTION"),
}


class FoldClause(NamedTuple):
    """A FOLD clause as it is written.

    Attributes:
        name: Of the fold.
        parts: What each part says, by attribute of `Fold`, and `source`; `input_retention` may name a setting.
        locations: File, line and column of each part.
    """

    name: str
    parts: dict[str, Any]
    locations: dict[str, str]


@dataclass
class FoldClauseReader(ClauseReader):
    """Reads the FOLD clauses of a stream. `clause_tokens` also has `FOLD <name>`."""

    def _fold(self) -> FoldClause:
        first = self.peek()
        name = self.name("the fold's name")
        if name.upper() in FOLD_PARTS and first.token_type not in QUOTED and not self._fold_part():
            raise self.error("a fold has no name", first.text, f"write FOLD totals {name.upper()} ...", first)
        clause = f"FOLD {name}"
        if clause.lower() in {one.lower() for one in self.clause_tokens}:
            raise self.error("a fold is declared twice", name, "rename one", first)
        self.clause_tokens[clause] = first
        given: dict[str, Any] = {}
        locations: dict[str, str] = {}
        while part := self._fold_part():
            token = self.next(part)
            attribute, second, _ = FOLD_PARTS[part]
            if attribute in given:
                raise self.error("a part of FOLD is repeated", part, "leave one", token)
            if second not in ("", "("):
                self.word(second)
            given[attribute], at = self._fold_value(attribute, name)
            locations[attribute] = f"{self.path}:{line_and_column(self.text, at)}"
        if self.at < len(self.tokens) and not self._begins_clause():
            hint = f"take one of: {', '.join(FOLD_PARTS)}; or go on with a clause of the stream, or AS and its SELECT"
            raise self.error(f"this is no part of FOLD {name}", self.peek().text, hint, self.peek())
        for part, (attribute, _, example) in FOLD_PARTS.items():
            if example and attribute not in given:
                written = ", ".join(one for one in FOLD_PARTS if FOLD_PARTS[one].attribute in given) or "nothing"
                raise self.error(f"{part} is missing in FOLD {name}", written, f"write {example}", first)
        return FoldClause(name, given, locations)

    def _declared_fold(self, clause: FoldClause, settings: Mapping[str, timedelta]) -> SqlFold:
        """The fold that a clause declares, with the settings of the stream."""
        (source, is_select), locations = clause.parts["source"], clause.locations
        parts = {attribute: part for attribute, part in clause.parts.items() if attribute != "source"}
        setting = parts.get("input_retention")
        if isinstance(setting, str):
            if setting not in settings:
                raise DeclarationError(
                    f"{locations['input_retention']}: INPUT RETENTION is neither a duration nor a SETTING",
                    got=setting,
                    hint=f"take one of: {', '.join(settings)}" if settings else "write INPUT RETENTION 5 HOURS",
                )
            parts["input_retention"] = settings[setting]
        for attribute, query in QUERY_NAMES.items():
            if unknown := unknown_variable(attribute, sql := parts.get(attribute, ""), settings):
                place = moved_location(locations[attribute], sql, unknown.start())
                raise DeclarationError(
                    f"{place}: {query} of fold {clause.name} reads an unknown variable",
                    got=unknown[0],
                    hint=variables_hint(attribute, settings, f"SETTING {unknown[1]} 30 MINUTES", unknown[1]),
                )
        try:
            fold = Fold(clause.name, **parts, variables=settings)
        except DeclarationError as e:
            at = locations.get(e.argument) or self.place(self.clause_tokens[f"FOLD {clause.name}"])
            raise DeclarationError(f"{at}: {e.what}", got=e.got, hint=e.hint) from e
        object.__setattr__(fold, "location", locations["source"])
        object.__setattr__(fold, "query_locations", locations)
        return SqlFold(fold, source, is_select)

    def _begins_clause(self) -> bool:
        """Whether a clause of the stream begins here, or its SELECT."""
        token = self.peek()
        return token.token_type not in QUOTED and " ".join(token.text.upper().split()) in (*self.CLAUSES, "AS")

    def _fold_part(self) -> str:
        """The part that begins here; empty if none does. STATE and EMIT may also begin clauses of the stream."""
        part = next((one for one in FOLD_PARTS if self.is_word(one)), "")
        following = self.tokens[self.at + 1].text.upper() if self.at + 1 < len(self.tokens) else ""
        is_clause = (part, following) in (("STATE", "PARTITIONS"), ("EMIT", "FINAL"), ("EMIT", "CHANGES"))
        return "" if is_clause else part

    def _fold_value(self, attribute: str, fold: str) -> tuple[Any, int]:
        """What a part says, and where it begins in the text."""
        begins = self.peek().start
        match attribute:
            case "source" if not self.is_word("("):
                return (self.name("the topic's name"), False), begins
            case "source":
                query, begins, _ = self._within("a SELECT over the topics")
                return (query, True), begins
            case "key":
                return self._columns("BY"), begins
            case "state_schema" | "output_schema":
                ddl, begins, _ = self._within("the fields, as (total DOUBLE, since BIGINT)")
                what = "the state" if attribute == "state_schema" else "the rows"
                try:
                    schema(ddl, f"{what} of fold {fold}", of_json=False)
                except DeclarationError as e:
                    raise self.error_at(e.what, str(e.got), e.hint, begins) from e
                return ddl, begins
            case "timer_field":
                return self.name("a field of the state"), begins
            case "input_retention":
                names_setting = not self.peek().text[:1].isdigit()
                return self.name("a duration or a SETTING") if names_setting else self.duration(), begins
        # DuckDB's SQL is taken apart as Spark's is: both have the same parentheses, quotations and comments.
        query, begins, _ = self._within("a condition" if attribute == "expires_when" else "a SELECT")
        return query, begins
