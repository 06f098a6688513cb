"""Parses the clauses of a capture's declaration and its SELECT; `penstock.model.capture` describes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.model.sql.capture_lexer import DIALECTS
from penstock.model.sql.lexer import TokenReader, excerpt
from penstock.model.sql.parser import parse_all, parse_one

T = TypeVar("T")

MB = 1024 * 1024
# Defaults of Kafka: a fetch has at most 50 MB, a request 100 MB.
MOST = 32 * MB
SIZES = {"KB": 1024, "MB": MB}
CLAUSES = ("CAPTURE", "FROM", "KEY", "CURSOR", "DELETED", "EVERY", "OVERLAP", "DELAY", "HOLD", "RECONCILE", "LARGEST")
NEEDED = ("CAPTURE", "FROM", "KEY", "CURSOR")
# Prefixes of topics of Kafka and of Penstock.
RESERVED = ("__", "penstock.")


# By the word of a format: what is written behind AS.
FORMATS = {
    "AVRO": "AVRO 'accounts.avsc'", "JSON": "JSON SCHEMA 'accounts.json'", "PROTOBUF": "PROTOBUF 'accounts.proto'",
}  # fmt: skip


class SchemaFile(NamedTuple):
    """A file with the schema of a topic's values.

    Attributes:
        kind: What a registry calls its format.
        name: The file, from the folder of the declaration.
        options: What else is said of the schema: `subject`, and of Protobuf `message`.
    """

    kind: str
    name: str
    options: dict[str, str]


@dataclass
class CaptureClauses(TokenReader):
    """First its clauses are read, then its SELECT.

    clause_tokens: where each clause that there is begins; topic, condition, begins: where the topic's name, DELETED's
    condition and the SELECT do.
    """

    kind: ClassVar[str] = "capture"

    clause_tokens: dict[str, Token] = field(default_factory=dict)
    topic: int = 0
    condition: int = 0
    begins: int = 0

    def read(self) -> dict[str, Any]:
        """Read all clauses up to AS.

        Returns:
            Fields of a Capture, with `topic` as a name, `partitions`, and `schema`: a SchemaFile, None for JSON.
        """
        values: dict[str, Any] = {"partitions": 1, "schema": None, "dialect": ""}
        while not self.is_word("AS"):
            clause = self._clause()
            match clause.text.upper():
                case "CAPTURE":
                    self.word("INTO")
                    values["topic"] = self._topic()
                    if self.is_word("PARTITIONS"):
                        self.at += 1
                        values["partitions"] = self.number("the number of partitions")
                    if self._is_format():
                        values["schema"] = self._schema_file()
                case "FROM":
                    values["dialect"] = self.one_of(DIALECTS, "the engine")
                    values["connection"] = self.name("the connection's name")
                case "KEY":
                    values["key"] = self.names("the key's columns")
                case "CURSOR":
                    values["cursor"] = self.name("the cursor's column")
                case "DELETED":
                    self.word("WHEN")
                    values |= self._condition(values["dialect"], clause)
                case "RECONCILE":
                    values |= self._reconcile()
                case "LARGEST":
                    values["max_record_bytes"] = self._size()
                case other:
                    values[other.lower()] = self.duration()
        if missing := [name for name in NEEDED if name not in self.clause_tokens]:
            present = ", ".join(self.clause_tokens) or "none"
            raise self.error(f"{', '.join(missing)} is missing", present, "write it before AS", self.peek())
        return values

    def _clause(self) -> Token:
        token = self.next("a clause, or AS and the SELECT")
        name = token.text.upper()
        if name not in CLAUSES:
            known = ", ".join((*CLAUSES, "AS"))
            raise self.error("this is no clause of a capture", token.text, f"take one of: {known}", token)
        if name in self.clause_tokens:
            raise self.error("a clause is repeated", name, "leave one", token)
        if not self.clause_tokens and name != "CAPTURE":
            raise self.error("a capture begins with CAPTURE INTO", token.text, "say into which topic first", token)
        self.clause_tokens[name] = token
        return token

    def _topic(self) -> str:
        first = self.peek()
        self.topic = first.start
        name = self.name("the topic's name")
        if name.startswith(RESERVED):
            raise self.error("this topic is reserved", name, f"use a name without these prefixes: {RESERVED}", first)
        return name

    def _is_format(self) -> bool:
        """Whether this AS stands before the format of the topic's values, and not before the SELECT."""
        following = self.tokens[self.at + 1 : self.at + 2]
        return self.is_word("AS") and bool(following) and following[0].text.upper() in FORMATS

    def _schema_file(self) -> SchemaFile:
        self.at += 1
        word = self.next("the format").text.upper()
        if word == "JSON":
            self.word("SCHEMA")
        file = self.next("the file of the schema")
        if self.text[file.start] != "'":
            raise self.error("expected the file of the schema", file.text, f"write AS {FORMATS[word]}", file)
        options = {"SUBJECT": "the subject in the registry"}
        if word == "PROTOBUF":
            options["MESSAGE"] = "the message that values are"
        said = dict[str, str]()
        while option := next((name for name in options if self.is_word(name)), ""):
            self.at += 1
            what = options.pop(option)
            is_text = self.text[self.peek().start] == "'"
            said[option.lower()] = self.next(what).text if is_text else self.name(what)
        return SchemaFile(word, file.text, said)

    def _condition(self, dialect: str, clause: Token) -> dict[str, Any]:
        if not dialect:
            raise self.error("DELETED is before FROM", clause.text, "say FROM first: it names the dialect", clause)
        first, depth = self.peek(), 1
        self.word("(")
        while depth:
            kind = self.next("the condition's `)`").token_type
            depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        if self.tokens[self.at - 2] is first:
            raise self.error("DELETED WHEN has no condition", "()", "e.g. DELETED WHEN (deleted = 1)", first)
        text, self.condition = self.text[first.start : self.tokens[self.at - 1].end + 1], first.start
        condition = self._sql(text, first, lambda: parse_one(text, dialect, exp.Condition))
        # It knows the SELECT's columns alone, and those have no table.
        for column in reversed(own_columns(condition)):
            start, end = (column.parts[i].meta.get("start", 0) for i in (0, -1))
            text = text[:start] + text[end:]
        return {"deleted": condition, "deleted_sql": text}

    def _reconcile(self) -> dict[str, Any]:
        if self.is_word("NEVER"):
            self.at += 1
            return {"reconcile": None}
        self.word("EVERY")
        values: dict[str, Any] = {"reconcile": self.duration()}
        if self.is_word("RATE"):
            self.at += 1
            values["reconcile_rate"] = self.number("the rows a second")
        if self.is_word("REMOVES"):
            self.at += 1
            values["max_removed_percent"] = self.number("the share of the topic's rows")
            self.word("PERCENT")
        return values

    def _size(self) -> int:
        count = self.number("a size")
        token = self.next("a unit of size")
        unit = SIZES.get(token.text.upper())
        if unit is None:
            raise self.error("this is no unit of size", token.text, f"take one of: {', '.join(SIZES)}", token)
        if count * unit > MOST:
            hint = f"say {MOST // MB} MB at most, and keep what is larger elsewhere"
            raise self.error("this is larger than Kafka's clients take", f"{count} {token.text}", hint, token)
        return count * unit

    def select(self, dialect: str) -> tuple[exp.Select, str]:
        """The parsed SELECT, and its text without comments and semicolons at its end."""
        first, text = self.behind_as()
        self.begins = first.start
        statements = self._sql(text, first, lambda: parse_all(text, dialect))
        if len(statements) != 1 or not isinstance(statements[0], exp.Select):
            kind = "several statements" if len(statements) > 1 else type(statements[0]).__name__.upper()
            raise self.error("AS must be followed by one SELECT", kind, "make it one plain SELECT", first)
        return statements[0], text

    def _sql(self, text: str, first: Token, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (ParseError, TokenError) as e:
            known = e.errors[0] if isinstance(e, ParseError) and e.errors else {}
            what = known.get("description") or str(e).splitlines()[0]
            what, got = what.split(" but got ")[0], known.get("highlight") or excerpt(text)
            line, column = known.get("line") or 1, known.get("col") or 1
            lines = text.splitlines(keepends=True)
            # The parser says where the token ends.
            at = first.start + sum(map(len, lines[: line - 1])) + column - len(got)
            raise self.error_at(what, got, "correct the SQL", max(at, first.start)) from e


def own_columns(condition: exp.Expr) -> list[exp.Column]:
    """The columns that a condition names, but for those of its subqueries; as they stand."""
    columns = (column for column in condition.find_all(exp.Column) if column.find_ancestor(exp.Select) is None)
    return sorted(columns, key=lambda column: int(column.parts[0].meta.get("start", 0)))
