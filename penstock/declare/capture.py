"""What a capture is, as declared in `sql/captures/<name>.sql`: some clauses, then an ordinary SELECT.

::

    CAPTURE INTO accounts PARTITIONS 4    -- the compacted topic; one partition if none is said
    FROM mysql demo                       -- mysql (MariaDB too), postgres or sqlite; then a connection's name
    KEY (id)                              -- the columns that name a row, all of them NOT NULL
    CURSOR updated_at                     -- the column that grows with each change of a row
    DELETED WHEN (deleted = 1)            -- which rows are tombstones; none if left out
    EVERY 1 SECOND                        -- between two polls; one second if left out
    OVERLAP 10 SECONDS                    -- how far each poll goes back behind the last one; see below
    DELAY 5 SECONDS                       -- how long a transaction may be open where the engine cannot tell
    HOLD 10 MINUTES                       -- how long one open transaction may hold the capture back; see below
    RECONCILE EVERY 1 DAY                 -- when table and topic are compared; never if left out
    AS
    SELECT id, name, deleted, updated_at FROM accounts

CAPTURE, FROM, KEY, CURSOR and AS must be there; every clause stands once, in any order behind CAPTURE. Durations are a
whole number and MILLISECONDS, SECONDS, MINUTES, HOURS or DAYS. The overlap covers clocks that step back: a row whose
cursor lies that far behind one already read is still seen. While a transaction is open, all rows behind its beginning
are read at every poll; one open longer than the hold is no longer waited for, and once it has ended everything behind
its beginning is read again.

The SELECT gives one row per key and says the same whenever it is asked: no GROUP BY, DISTINCT, UNION, LIMIT, ORDER BY,
aggregates, or functions of the moment. It is paged by conditions added to its WHERE.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.declare.declared import Kind, Place
from penstock.declare.topic import Topic
from penstock.errors import DeclarationError

T = TypeVar("T")

DIALECTS = ("mysql", "postgres", "sqlite")
UNITS = {
    "MILLISECOND": timedelta(milliseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
}
# With so many arguments they speak of those alone.
AT_LEAST = {"UNIX_TIMESTAMP": 1, "UNIXEPOCH": 1, "AGE": 2, "USER": 1}
CLAUSES = ("CAPTURE", "FROM", "KEY", "CURSOR", "DELETED", "EVERY", "OVERLAP", "DELAY", "HOLD", "RECONCILE")
NEEDED = ("CAPTURE", "FROM", "KEY", "CURSOR")
# The app whose driver holds all captures.
APP = "captures"
# What would make a page of rows other than the rows themselves, by the argument of sqlglot's Select.
REFUSED = {
    "with_": "WITH",
    "distinct": "DISTINCT",
    "group": "GROUP BY",
    "having": "HAVING",
    "windows": "WINDOW",
    "qualify": "QUALIFY",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "locks": "FOR UPDATE",
    "into": "INTO",
}
# What says another thing at each call, by the name sqlglot or the engine gives it.
MOMENTARY = {
    "NOW", "SYSDATE", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_DATETIME", "CURDATE", "CURTIME",
    "LOCALTIME", "LOCALTIMESTAMP", "UTC_TIMESTAMP", "UTC_DATE", "UTC_TIME", "UNIX_TIMESTAMP", "UNIXEPOCH",
    "CLOCK_TIMESTAMP", "STATEMENT_TIMESTAMP", "TRANSACTION_TIMESTAMP", "TIMEOFDAY", "AGE",
    "RAND", "RANDOM", "RANDN", "UUID", "UUID_SHORT", "GEN_RANDOM_UUID", "NEWID",
    "CURRENT_USER", "SESSION_USER", "USER", "SYSTEM_USER", "CONNECTION_ID", "LAST_INSERT_ID", "ROW_COUNT",
    "FOUND_ROWS", "NEXTVAL", "SETVAL", "LASTVAL", "SLEEP", "PG_SLEEP", "CHANGES", "TOTAL_CHANGES",
    "TXID_CURRENT", "PG_BACKEND_PID",
}  # fmt: skip


@dataclass(frozen=True)
class Capture:
    """One declared capture; see the module. deleted: a condition over the SELECT's columns."""

    name: str
    path: Path
    topic: Topic
    dialect: str
    connection: str
    key: tuple[str, ...]
    cursor: str
    select: exp.Select
    deleted: exp.Expr | None = None
    every: timedelta = timedelta(seconds=1)
    overlap: timedelta = timedelta(seconds=10)
    delay: timedelta = timedelta(seconds=5)
    hold: timedelta = timedelta(minutes=10)
    reconcile: timedelta | None = None

    kind: ClassVar[Kind] = "capture"

    @property
    def app(self) -> str:
        return APP

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def reads(self) -> Sequence[Place]:
        """The tables of its SELECT, each as `connection:table`."""
        tables = self.select.find_all(exp.Table)
        names = dict.fromkeys(".".join(part.name for part in table.parts) for table in tables)
        return tuple(Place("table", f"{self.connection}:{name}") for name in names)

    @property
    def writes(self) -> Sequence[Place]:
        return (Place("topic", self.topic.name),)

    @property
    def fingerprint(self) -> str:
        """Changes with whatever decides which rows there are and what they look like in the topic."""
        parts = (
            self.dialect,
            self.connection,
            self.topic.name,
            *self.key,
            self.cursor,
            self.select.sql(self.dialect),
            self.deleted.sql(self.dialect) if self.deleted else "",
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def columns(self) -> list[str] | None:
        """The names of the SELECT's columns, in order; None if it says `*`."""
        return None if self.select.is_star else self.select.named_selects


def load(folder: Path) -> dict[str, Capture]:
    """The captures of a folder, by name; none if there is no folder."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.sql"))}


def read(path: Path) -> Capture:
    """The capture that a file declares; DeclarationError with file, line and column if it is none."""
    return parse(path.read_text(), path)


def parse(text: str, path: Path) -> Capture:
    """As `read`, from the file's text."""
    try:
        tokens = sqlglot.tokenize(text)
    except TokenError as e:
        # Only what is opened and never closed cannot be taken apart: the last line that opens it is as near as it gets.
        raise DeclarationError(
            f"{path}: a quotation or comment is not closed", got=_shown(str(e)), fix="close it"
        ) from e
    return _Parser(text, path, tokens).capture()


@dataclass
class _Parser:
    text: str
    path: Path
    tokens: list[Token]
    at: int = 0
    found: dict[str, Token] = field(default_factory=dict)

    def capture(self) -> Capture:
        given: dict[str, object] = {}
        topic, partitions, dialect = "", 1, ""
        while not self._is("AS"):
            clause = self._clause()
            match clause.text.upper():
                case "CAPTURE":
                    self._word("INTO")
                    topic = self._name("the topic's name")
                    if self._is("PARTITIONS"):
                        self.at += 1
                        partitions = self._number("the number of partitions")
                case "FROM":
                    dialect = self._one_of(DIALECTS, "the engine")
                    given["connection"] = self._name("the connection's name")
                case "KEY":
                    given["key"] = self._names("the key's columns")
                case "CURSOR":
                    given["cursor"] = self._name("the cursor's column")
                case "DELETED":
                    self._word("WHEN")
                    given["deleted"] = self._condition(dialect, clause)
                case "RECONCILE":
                    self._word("EVERY")
                    given["reconcile"] = self._duration()
                case other:
                    given[other.lower()] = self._duration()
        if lacking := [name for name in NEEDED if name not in self.found]:
            there = ", ".join(self.found) or "none"
            raise self._error(f"{', '.join(lacking)} is missing", there, "say it before AS", self._peek())
        made = Capture(
            name=self.path.stem,
            path=self.path,
            topic=Topic(topic, partitions=partitions, compacted=True, beat_every=0, widens=False),
            dialect=dialect,
            select=self._select(dialect),
            **given,  # type: ignore[arg-type]
        )
        self._check(made)
        return made

    # Clauses

    def _clause(self) -> Token:
        token = self._next("a clause, or AS and the SELECT")
        name = token.text.upper()
        if name not in CLAUSES:
            known = ", ".join((*CLAUSES, "AS"))
            raise self._error("this is no clause of a capture", token.text, f"take one of: {known}", token)
        if name in self.found:
            raise self._error("a clause stands twice", name, "leave one", token)
        if not self.found and name != "CAPTURE":
            raise self._error("a capture begins with CAPTURE INTO", token.text, "say into which topic first", token)
        self.found[name] = token
        return token

    def _condition(self, dialect: str, clause: Token) -> exp.Expr:
        if not dialect:
            raise self._error("DELETED stands before FROM", clause.text, "say FROM first: it names the dialect", clause)
        first, depth = self._peek(), 1
        self._word("(")
        while depth:
            kind = self._next("the condition's `)`").token_type
            depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        if self.tokens[self.at - 2] is first:
            raise self._error("DELETED WHEN has no condition", "()", "e.g. DELETED WHEN (deleted = 1)", first)
        text = self.text[first.start : self.tokens[self.at - 1].end + 1]
        return self._parsed(text, first, lambda: sqlglot.parse_one(text, into=exp.Condition, dialect=dialect))

    def _duration(self) -> timedelta:
        count = self._number("a duration")
        token = self._next("a unit of time")
        unit = UNITS.get(token.text.upper().removesuffix("S"))
        if unit is None:
            known = ", ".join(f"{name}S" for name in UNITS)
            raise self._error("this is no unit of time", token.text, f"take one of: {known}", token)
        return count * unit

    def _select(self, dialect: str) -> exp.Select:
        start = self._next("AS")
        if self.at >= len(self.tokens):
            raise self._error("there is no SELECT", "the end of the file", "say it behind AS", start)
        first = self._peek()
        text = self.text[first.start :]
        made = self._parsed(text, first, lambda: sqlglot.parse(text, dialect=dialect))
        if len(made) != 1 or not isinstance(made[0], exp.Select):
            kind = "several statements" if len(made) > 1 else type(made[0]).__name__.upper()
            raise self._error("behind AS stands one SELECT", kind, "make it one plain SELECT", first)
        return made[0]

    def _parsed(self, text: str, first: Token, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (ParseError, TokenError) as e:
            known = e.errors[0] if isinstance(e, ParseError) and e.errors else {}
            line, column = known.get("line") or 1, known.get("col") or 1
            # The parser counts from the first token of what it is given.
            place = (first.line + line - 1, column + (_column(first) - 1 if line == 1 else 0))
            what = known.get("description") or str(e).splitlines()[0]
            what, got = what.split(" but got ")[0], known.get("highlight") or _shown(text)
            raise DeclarationError(f"{self.path}:{place[0]}:{place[1]}: {what}", got=got, fix="mend the SQL") from e

    # What is wrong with it as a whole

    def _check(self, made: Capture) -> None:
        select, start = made.select, self._behind_as()
        for argument, name in REFUSED.items():
            if select.args.get(argument):
                fix = "select the rows as they are: one per key, in no order"
                raise self._error(f"a capture cannot page through {name}", name, fix, start)
        for node in (*select.walk(), *(made.deleted.walk() if made.deleted else ())):
            if isinstance(node, exp.AggFunc | exp.Window):
                raise self._error("a capture has no aggregates", node.sql(made.dialect), "leave it out", start)
            if _momentary(node):
                fix = "leave it out: each poll would take every row for a changed one"
                raise self._error("this says another thing at each poll", node.sql(made.dialect), fix, start)
            if isinstance(node, exp.Placeholder | exp.Parameter):
                raise self._error("a capture has no parameters", node.sql(made.dialect), "write the value", start)
        if made.delay >= made.hold:
            fix = "a transaction is waited for as long as HOLD says at most: make it longer than DELAY"
            raise self._error("DELAY is not shorter than HOLD", f"{made.delay} and {made.hold}", fix, start)
        if made.columns is not None:
            self._check_columns(made, made.columns, start)

    def _check_columns(self, made: Capture, columns: list[str], start: Token) -> None:
        known = ", ".join(columns)
        if "" in columns or len(set(columns)) < len(columns):
            fix = "give each column of the SELECT a name of its own, by AS"
            raise self._error("columns without a name, or with one name", known, fix, start)
        used = [("KEY", name) for name in made.key] + [("CURSOR", made.cursor)]
        if made.deleted is not None:
            used += [("DELETED", column.name) for column in made.deleted.find_all(exp.Column)]
        for clause, name in used:
            if name not in columns:
                fix = f"take one of the SELECT's columns: {known}"
                raise self._error(f"{clause} names a column that is not selected", name, fix, self.found[clause])

    def _behind_as(self) -> Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    # Tokens

    def _peek(self) -> Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    def _next(self, wanted: str) -> Token:
        if self.at >= len(self.tokens):
            last = self.tokens[-1] if self.tokens else None
            raise self._error("the file ends too soon", "its end", f"say {wanted}", last)
        self.at += 1
        return self.tokens[self.at - 1]

    def _is(self, word: str) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.token_type != TokenType.IDENTIFIER and token.text.upper() == word

    def _word(self, word: str) -> None:
        token = self._next(word)
        if token.text.upper() != word:
            raise self._error(f"here stands {word}", token.text, f"write {word}", token)

    def _one_of(self, words: tuple[str, ...], what: str) -> str:
        token = self._next(what)
        if token.text.lower() not in words:
            raise self._error(f"{what} is not known", token.text, f"take one of: {', '.join(words)}", token)
        return token.text.lower()

    def _name(self, what: str) -> str:
        token = self._next(what)
        parts = [token.text]
        if not (token.token_type in (TokenType.VAR, TokenType.IDENTIFIER) or token.text.isidentifier()):
            raise self._error(f"here stands {what}", token.text, "write a name; quote it if it is no plain word", token)
        # Topics and connections may have a '-' or '.', which SQL takes apart.
        while self._joined():
            parts += [self._next(what).text, self._next(what).text]
        return "".join(parts)

    def _joined(self) -> bool:
        if not 0 < self.at < len(self.tokens) - 1:
            return False
        before, sign, behind = self.tokens[self.at - 1 : self.at + 2]
        touching = before.end + 1 == sign.start and sign.end + 1 == behind.start
        return sign.token_type in (TokenType.DASH, TokenType.DOT) and touching

    def _names(self, what: str) -> tuple[str, ...]:
        return tuple(self._listed(what))

    def _listed(self, what: str) -> Iterator[str]:
        if not self._is("("):
            yield self._name(what)
            return
        self.at += 1
        yield self._name(what)
        while not self._is(")"):
            self._word(",")
            yield self._name(what)
        self.at += 1

    def _number(self, what: str) -> int:
        token = self._next(what)
        if not token.text.isdecimal() or not int(token.text):
            raise self._error(f"{what} is no whole number above 0", token.text, "write digits", token)
        return int(token.text)

    def _error(self, what: str, got: str, fix: str, token: Token | None) -> DeclarationError:
        place = f"{token.line}:{_column(token)}" if token else "1:1"
        return DeclarationError(f"{self.path}:{place}: {what}", got=got, fix=fix)


def _momentary(node: exp.Expr) -> bool:
    if isinstance(node, exp.Literal):
        return node.is_string and node.this.strip().lower() == "now" and isinstance(node.parent, exp.Func)
    if isinstance(node, exp.Anonymous):
        return node.name.upper() in MOMENTARY and len(node.expressions) < AT_LEAST.get(node.name.upper(), 99)
    return isinstance(node, exp.Func) and not MOMENTARY.isdisjoint(type(node).sql_names())


def _shown(text: str) -> str:
    return " ".join(text.split())[:60]


def _column(token: Token) -> int:
    """Where a token begins: sqlglot says where it ends."""
    return int(token.col) - (token.end - token.start)
