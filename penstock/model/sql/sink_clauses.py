"""The clauses of a sink's declaration and its SELECT; `penstock.model.sink` says what each means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast, get_args

from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import DeclarationError
from penstock.model.schema import schema
from penstock.model.sink import POINT_STORES, RECORD_COLUMN, Format, SinkRead, Store, Tombstones, Unit, Verb
from penstock.model.sql.clause_reader import ClauseReader
from penstock.model.sql.lexer import QUOTED, excerpt
from penstock.model.topic import OF_TOPIC

# Of a target's name: what may stand in it, and one part.
NAMED = re.compile(r"[\w.-]")
PART = re.compile(r"`(?:[^`]|``)+`|[\w-]+")
BEGIN = ("UPSERT", "INSERT")
# Those that only some stores have; all others every store has.
ONLY: dict[str, tuple[str, ...]] = {
    "KEY": ("elasticsearch", "mongodb"),
    "SUFFIX": ("elasticsearch", "mongodb"),
    "FIELDS": ("elasticsearch", "influxdb"),
    "INDEX": ("mongodb",),
    "UNIQUE": ("mongodb",),
    "MEASUREMENT": ("influxdb",),
    "TAGS": ("influxdb",),
    "TIME": ("influxdb",),
}
CLAUSES = (
    *BEGIN, "READ", "KEY", "VERSION", "SUFFIX", "EXPIRE", "TOMBSTONES", "DELETED", "BATCH", "PARALLEL", "DEAD", "APP",
    "MASK", "FIELDS", "INDEX", "UNIQUE", "MEASUREMENT", "TAGS", "TIME",
)  # fmt: skip
SEVERAL = ("READ", "INDEX", "UNIQUE")
TARGETS = {
    "elasticsearch": "elasticsearch.<index>",
    "mongodb": "mongodb.<database>.<collection>",
    "influxdb": "influxdb.<database>.<measurement>, or influxdb.<database> and MEASUREMENT (column)",
}
# Rows of a batch are held in memory, and each request at once has its connection.
MOST = {"BATCH": 1_000_000, "PARALLEL": 32}
ONCE = "each record makes documents of its own, which no later one changes"


@dataclass
class SinkClauses(ClauseReader):
    """Reads the clauses of a sink, then its SELECT.

    `clause_tokens` has for a topic also `READ <topic>`, `JSON <topic>` and `EVENT TIME <topic>`.
    """

    CLAUSES = CLAUSES

    def read(self) -> dict[str, Any]:
        """Every clause up to AS: the fields of a Sink."""
        values: dict[str, Any] = {"reads": (), "indexes": (), "unique_indexes": ()}
        while not self.is_word("AS"):
            clause = self._clause()
            name = clause.text.upper()
            self._goes(name, clause, values)
            match name:
                case "UPSERT" | "INSERT":
                    self.word("INTO")
                    values |= {"verb": cast("Verb", name.lower()), **self._target()}
                case "READ":
                    values["reads"] += (self._read({read.topic.lower() for read in values["reads"]}),)
                case "KEY" | "TAGS":
                    values[name.lower()] = self._columns(name)
                case "VERSION":
                    values["version"] = self._version(values["store"])
                case "SUFFIX":
                    unit = self.one_of(get_args(Unit), "the length of a part")
                    values["suffix"] = (cast("Unit", unit), self._column(name))
                case "EXPIRE":
                    self.word("AFTER")
                    values["expire"] = self.duration()
                case "TOMBSTONES":
                    values["tombstones"] = cast("Tombstones", self.one_of(get_args(Tombstones), "what tombstones do"))
                    if self.is_word("("):
                        values["tombstone_key"] = tuple(self._parts("an expression over the record, as record.key"))
                case "DELETED":
                    self.word("WHEN")
                    values["deleted_sql"] = self._inside("a condition, as DELETED WHEN (deleted)")
                case "BATCH":
                    values["max_records"] = self._count(name)
                    if self.is_word("EVERY"):
                        self.at += 1
                        values["every"] = self.duration()
                case "PARALLEL":
                    values["parallel"] = self._count(name)
                case "DEAD":
                    self.word("LETTERS")
                    self.word("INTO")
                    values["dead_letters"] = self.name("the topic's name")
                case "MASK":
                    values["mask"] = self._masks()
                case "APP":
                    values["app"] = self.name("the app's name")
                case "FIELDS":
                    values["fields"] = self._fields(values["store"])
                case "INDEX":
                    values["indexes"] += (self._columns(name),)
                case "UNIQUE":
                    self.word("INDEX")
                    values["unique_indexes"] += (self._columns(name),)
                case other:
                    values[other.lower()] = self._column(name)
        if not values["reads"]:
            there = ", ".join(self.clause_tokens) or "none"
            raise self.error("READ is missing", there, "say before AS which topics it reads", self.peek())
        return values

    def _clause(self) -> Token:
        token = self.next("a clause, or AS and the SELECT")
        name = token.text.upper()
        if name not in CLAUSES or token.token_type in QUOTED:
            known = ", ".join((*CLAUSES, "AS"))
            raise self.error("this is no clause of a sink", token.text, f"take one of: {known}", token)
        if not self.clause_tokens and name not in BEGIN:
            hint = "say first into what: UPSERT INTO elasticsearch.<index>"
            raise self.error("a sink begins with UPSERT INTO or INSERT INTO", token.text, hint, token)
        if (name in self.clause_tokens and name not in SEVERAL) or (name in BEGIN and self.clause_tokens):
            raise self.error("a clause is repeated", name, "leave one", token)
        self.clause_tokens.setdefault("INTO" if name in BEGIN else name, token)
        return token

    def _goes(self, name: str, clause: Token, values: dict[str, Any]) -> None:
        """A clause that is parsed is honoured, or it is refused."""
        store, verb = values.get("store", ""), values.get("verb", "")
        if store and store not in ONLY.get(name, (store,)):
            others = " and ".join(ONLY[name])
            raise self.error(f"{store} has no {name}", name, f"leave it out: it is for {others}", clause)
        if verb == "insert" and name in ("KEY", "VERSION", "TOMBSTONES", "DELETED"):
            raise self.error(f"INSERT has no {name}: {ONCE}", name, "leave it out, or write UPSERT INTO", clause)

    def _target(self) -> dict[str, Any]:
        first = self.peek()
        store = self.one_of(get_args(Store), "the store")
        parts = [] if self.at >= len(self.tokens) else self._parts_of_name()
        # An index, a collection or a measurement may have dots.
        most = 1 if store == "elasticsearch" else 2
        target = (*parts[: most - 1], ".".join(parts[most - 1 :])) if parts[most - 1 :] else tuple(parts)
        if len(target) != most and not (store in POINT_STORES and target):
            raise self.error("the target is not complete", ".".join((store, *parts)), f"write {TARGETS[store]}", first)
        return {"store": cast("Store", store), "target": target}

    def _parts_of_name(self) -> list[str]:
        """What stands behind the store's name without a blank, taken apart at its dots."""
        first, last = self.peek(), self.tokens[self.at - 1]
        begins = last.end + 1
        while self.at < len(self.tokens) and self.peek().start <= last.end + 1:
            if self.peek().token_type != TokenType.IDENTIFIER and not NAMED.match(self.peek().text):
                break
            last = self.next("a name")
        text = self.text[begins : last.end + 1]
        parts = PART.findall(text)
        if "".join(f".{part}" for part in parts) != text:
            hint = "write it without blanks, and each part that has other signs than '-' and '_' in backticks"
            raise self.error("this is no name", excerpt(text), hint, first)
        return [part[1:-1].replace("``", "`") if part[0] == "`" else part for part in parts]

    def _read(self, others: set[str]) -> SinkRead:
        first = self.peek()
        topic = self.name("the topic's name")
        if topic.lower() in others:
            hint = "name it once; the SELECT may read it as often as it likes, but knows no capitals from small letters"
            raise self.error("a topic is read twice", topic, hint, first)
        self.clause_tokens[f"READ {topic}"] = first
        share = self._share(topic)
        form, ddl, time = self._format(), "", ""
        if not form:
            form, ddl = "json", OF_TOPIC
        elif form == "json":
            self.clause_tokens[f"JSON {topic}"] = self.peek()
            ddl = self._inside("the fields, as (id BIGINT NOT NULL, name STRING)")
            with self.placed(f"JSON {topic}"):
                fields = schema(ddl, f"topic {topic}")
                if any(values.name.lower() == RECORD_COLUMN for values in fields):
                    hint = f"leave it out, and take get_json_object(string({RECORD_COLUMN}.value), '$.{RECORD_COLUMN}')"
                    raise DeclarationError("a field has the name of the record itself", got=RECORD_COLUMN, hint=hint)
        if self.is_word("EVENT"):
            self.at += 1
            self.word("TIME")
            self.clause_tokens[f"EVENT TIME {topic}"] = self.peek()
            time = self._expression("the event time")
        return SinkRead(topic, form, ddl, time, share)

    def _format(self) -> Format | None:
        """AS and a format; None where the topic's own schema is read."""
        if not self.is_word("AS") or self.begins_select():
            return None
        self.next("AS")
        return cast("Format", self.one_of(get_args(Format), "the format of its values"))

    def _share(self, topic: str) -> tuple[int, int]:
        """SHARE 1 OF 2, or nothing."""
        if not self.is_word("SHARE"):
            return (1, 1)
        self.clause_tokens[f"SHARE {topic}"] = self.next("SHARE")
        n = self.number("which share it is")
        self.word("OF")
        last = self.peek()
        of = self.number("how many shares there are")
        if not 1 <= n <= of:
            raise self.error("there is no such share", f"{n} OF {of}", "write SHARE 1 OF 2, and SHARE 2 OF 2", last)
        return n, of

    def _version(self, store: str) -> str:
        if self.is_word("NONE"):
            token = self.next("NONE")
            if store not in POINT_STORES:
                hint = "leave VERSION out, or name a column: an older record must not take the place of a newer one"
                raise self.error(f"{store} needs versions", "NONE", hint, token)
            return "none"
        first, name = self.peek(), self._column("VERSION")
        if name.lower() == "none":
            raise self.error("no column of a version is called so", name, "give it another name by AS", first)
        return name

    def _fields(self, store: str) -> dict[str, str]:
        found: dict[str, str] = {}
        self.word("(")
        while True:
            first, name, kind = self.peek(), self.name("a field's name"), ""
            if not (self.is_word(",") or self.is_word(")")):
                # Or what the store takes for one, as text.
                text = self.peek().token_type == TokenType.STRING
                kind = self.next("a type").text if text else self.name("a field's type").lower()
            if name in found or (store == "elasticsearch" and not kind):
                hint = (
                    "write each once, with its type: (name KEYWORD)" if store == "elasticsearch" else "write each once"
                )
                raise self.error("this does not say what a field is", name, hint, first)
            found[name] = kind
            if self.is_word(")"):
                self.at += 1
                return found
            self.word(",")

    def _count(self, clause: str) -> int:
        first = self.peek()
        if (count := self.number(f"the number of {clause}")) > MOST[clause]:
            raise self.error(f"{clause} is too much", first.text, f"say {MOST[clause]} at most", first)
        return count
