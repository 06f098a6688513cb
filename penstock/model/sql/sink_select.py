"""The SELECT of a sink, so changed that each of its rows keeps the record it was made of.

It is Spark's, and read here in words, not as a tree: `record` and the way a row took are spliced into the list of each
SELECT, and what is no work on one record at a time is refused where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot.tokenizer_core import Token, TokenType

from penstock.model.checks.volatile_expressions import VOLATILE_HINT
from penstock.model.sink import PATH_COLUMN, RECORD_COLUMN, RewrittenSelect
from penstock.model.sql.lexer import QUOTED, excerpt
from penstock.model.sql.sink_clauses import SinkClauses
from penstock.model.sql.volatile_functions import AT_LEAST, BARE, NAMES

RECORD_COLUMNS = f"{RECORD_COLUMN}, {PATH_COLUMN}"
ALONE = "a sink works on one record at a time"
STREAM = "leave it out, or let a stream under jobs/ make a topic of it that this sink reads"
# What is refused wherever it stands; of several words the first ones, as they follow each other.
REFUSED = {
    "GROUP BY": (f"{ALONE}: no aggregates", STREAM),
    "HAVING": (f"{ALONE}: no aggregates", STREAM),
    "ORDER BY": (f"{ALONE}: no order", "leave it out: the version says which document is newer"),
    "SORT BY": (f"{ALONE}: no order", "leave it out: the version says which document is newer"),
    "CLUSTER BY": (f"{ALONE}: no order", "leave it out: the version says which document is newer"),
    "DISTRIBUTE BY": (f"{ALONE}: no order", "leave it out: the version says which document is newer"),
    "JOIN": (f"{ALONE}: no joins", STREAM),
    "TABLESAMPLE": (VOLATILE_HINT, "leave it out"),
    "PIVOT (": (f"{ALONE}: no aggregates", STREAM),
    "OVER (": (f"{ALONE}: no windows", STREAM),
    "INTERSECT": (f"{ALONE}: UNION ALL alone puts SELECTs together", STREAM),
    "|>": ("pipes are not read here", "write SELECT ... FROM ..."),
    ";": ("AS must be followed by one SELECT", "make it one, or a file of each"),
}
# Functions that are refused, with what stands in their parentheses, if that decides.
MOMENTS = (*(f"{name} (" for name in sorted(NAMES["spark"] - AT_LEAST.keys())), "UNIX_TIMESTAMP ( )")
REFUSED |= dict.fromkeys(MOMENTS, (VOLATILE_HINT, f"take {RECORD_COLUMN}.timestamp, {RECORD_COLUMN}.offset or a field"))
SOURCES = ("FROM", "UNION", "ALL", "BY NAME", "LATERAL")
STARTS = ("SELECT", "INSERT", "FROM", "MERGE", "UPDATE", "DELETE", "TABLE", "VALUES", "MAP", "REDUCE", "CREATE")


@dataclass
class Open:
    """A SELECT whose end is not reached. listing: until its FROM; source: where that stands, 0 until it is reached."""

    token: Token
    depth: int
    number: int
    listing: bool = True
    source: int = 0


@dataclass
class Select:
    """clauses: those before it; sql: as it is written; tokens: its words."""

    clauses: SinkClauses
    sql: str
    tokens: Sequence[Token]
    words: list[str] = field(init=False)
    added: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = ["" if t.token_type in QUOTED else " ".join(t.text.upper().split()) for t in self.tokens]

    def rewritten(self) -> RewrittenSelect:
        """DeclarationError, with the place, if it cannot be told of each row which record it comes from."""
        self._begins()
        for at in range(len(self.words)):
            self._refuse(at)
        self._scan()
        added = sorted(((at - self.clauses.begins, text) for at, text in self.added), key=lambda one: one[0])
        sql, end = "", 0
        for at, text in added:
            sql, end = sql + self.sql[end:at] + text, at
        return RewrittenSelect(sql + self.sql[end:], tuple((at, len(text)) for at, text in added))

    def reads(self, topic: str) -> bool:
        return any(token.text.lower() == topic.lower() for token in self.tokens)

    def _begins(self) -> None:
        depth = 0
        hint = "write SELECT ... FROM a topic that READ names"
        first = next((at for at, word in enumerate(self.words) if word != "("), 0)
        if self.words[first] not in ("SELECT", "WITH"):
            raise self.clauses.error(
                "AS must be followed by a SELECT", self.tokens[first].text, hint, self.tokens[first]
            )
        for at, word in enumerate(self.words):
            depth += (word == "(") - (word == ")")
            if depth == 0 and word in STARTS:
                if word != "SELECT":
                    raise self.clauses.error("AS must be followed by a SELECT", word, hint, self.tokens[at])
                return

    def _refuse(self, at: int) -> None:
        if not self.words[at] or self._is_part(at):
            return
        ahead = " ".join(self.words[at : at + 3])
        for words, (what, hint) in REFUSED.items():
            if ahead == words or ahead.startswith(f"{words} "):
                raise self.clauses.error(what, words.removesuffix(" ("), hint, self.tokens[at])
        word, following = self.words[at], self.words[at + 1] if at + 1 < len(self.words) else ""
        if word == "LATERAL" and following != "VIEW":
            hint = "write FROM topic LATERAL VIEW explode(items) v AS item, without a comma"
            raise self.clauses.error(
                f"{ALONE}: no joins, as a LATERAL without VIEW is one", word, hint, self.tokens[at]
            )
        if word in BARE["spark"] and following != ".":
            what, hint = REFUSED[f"{word} ("]
            raise self.clauses.error(what, word, hint, self.tokens[at])
        if (
            word in ("LIMIT", "OFFSET")
            and self.tokens[min(at + 1, len(self.tokens) - 1)].token_type == TokenType.NUMBER
        ):
            raise self.clauses.error(f"{ALONE}: none of them is the last", word, "leave it out", self.tokens[at])
        if word == "DISTINCT" and self.words[at - 1] in ("SELECT", "("):
            raise self.clauses.error(f"{ALONE}: no DISTINCT", word, STREAM, self.tokens[at])
        if word == "UNION" and following != "ALL":
            hint = "write UNION ALL; of two documents with one id the newer stays"
            raise self.clauses.error(f"{ALONE}: no UNION that drops what is there twice", word, hint, self.tokens[at])
        if word == "AS" and self.words[at - 1] == ")" and following == "(":
            hint = "name the columns in its SELECT, by AS"
            raise self.clauses.error("names of columns behind a name are not read", ") AS (", hint, self.tokens[at])
        if word in ("EXCEPT", "MINUS") and following in ("SELECT", "ALL", "DISTINCT"):
            raise self.clauses.error(f"{ALONE}: no {word}", word, STREAM, self.tokens[at])

    def _is_part(self, at: int) -> bool:
        """Whether it is a name behind a dot."""
        return at > 0 and self.tokens[at - 1].token_type == TokenType.DOT

    def _scan(self) -> None:
        stack: list[Open] = []
        opened: list[int] = []
        several, number = "UNION" in self.words, 0
        for at, word in enumerate(self.words):
            distinct = self._is_distinct(at)
            if word == "(":
                opened.append(at)
            elif word == ")":
                while stack and stack[-1].depth == len(opened):
                    self._closed(stack.pop())
                if opened:
                    opened.pop()
            elif word != "*" and self._is_part(at):
                continue
            elif word == "SELECT" and self._is_query(at):
                while stack and stack[-1].depth == len(opened):
                    self._closed(stack.pop())
                if opened and not self._is_source(opened, len(opened) - 1):
                    hint = "write an expression over the record, or LATERAL VIEW explode for what is in arrays"
                    raise self.clauses.error(f"{ALONE}: a SELECT stands in FROM alone", word, hint, self.tokens[at])
                number += 1
                stack.append(Open(self.tokens[at], len(opened), number))
            elif stack and word == "*":
                self._star(at, stack[-1], len(opened))
            elif word == "FROM" and stack and stack[-1].listing and stack[-1].depth == len(opened) and not distinct:
                self._from(at, stack[-1], several=several)
        for left in stack:
            self._closed(left)

    def _is_query(self, at: int) -> bool:
        """Whether a SELECT begins here, and it is no name."""
        return at == 0 or self.words[at - 1] in ("(", ")", "ALL", "UNION", "BY NAME", "NAME")

    def _is_source(self, opened: Sequence[int], level: int) -> bool:
        """Whether what a parenthesis holds are rows: of FROM, of WITH, or a part of a UNION."""
        at = opened[level]
        before = self.words[at - 1] if at else ""
        if at == 0 or before in SOURCES:
            return True
        if before == "AS":
            return self.words[0] == "WITH" or "WITH" in self.words
        if before == "(":
            return level == 0 or self._is_source(opened, level - 1)
        return before == ")" and "WITH" in self.words

    def _is_distinct(self, at: int) -> bool:
        return self.words[at - 1] == "DISTINCT" and self.words[at - 2] in ("IS", "NOT")

    def _star(self, at: int, select: Open, depth: int) -> None:
        """A star has the record in it: it is taken out, and stands behind all else. depth: parentheses open there."""
        before = self.words[at - 1]
        source = select.source or self._source(at, depth - select.depth)
        if before not in ("SELECT", "ALL", ",", "(") and not (before == "." and self._is_relation(at - 2, source)):
            return
        following = self.words[at + 1 : at + 3]
        if following == ["EXCEPT", "("]:
            closing = at + 3 + self.words[at + 3 :].index(")") if ")" in self.words[at + 3 :] else at + 2
            named = {token.text.lower() for token in self.tokens[at + 3 : closing]}
            new = ", ".join(name for name in (RECORD_COLUMN, PATH_COLUMN) if name not in named)
            self.added.append((self.tokens[closing].start, f", {new}"))
        else:
            self.added.append((self.tokens[at].end + 1, f" EXCEPT ({RECORD_COLUMNS})"))

    def _source(self, at: int, depth: int) -> int:
        """Where the FROM of a SELECT stands, from one of its words, with so many parentheses open; 0 if nowhere."""
        for behind in range(at + 1, len(self.words)):
            depth += (self.words[behind] == "(") - (self.words[behind] == ")")
            if depth < 0 or (depth == 0 and self.words[behind] in ("WHERE", "UNION")):
                return 0
            if depth == 0 and self.words[behind] == "FROM" and not self._is_distinct(behind):
                return behind
        return 0

    def _is_relation(self, at: int, source: int) -> bool:
        """Whether the name before a star is one of FROM, which stands at `source`, not a struct's."""
        if not source:
            return False
        name, depth = self.tokens[at].text.lower(), 0
        for other in range(source + 1, len(self.words)):
            depth += (self.words[other] == "(") - (self.words[other] == ")")
            if depth < 0 or (depth == 0 and self.words[other] in ("WHERE", "UNION", "LATERAL", "LATERAL VIEW")):
                return False
            if depth == 0 and self.tokens[other].text.lower() == name:
                return True
        return False

    def _from(self, at: int, select: Open, *, several: bool) -> None:
        if self.words[at - 1] in ("SELECT", ",", "AS"):
            hint = "write a column of that name in backticks: `from`"
            raise self.clauses.error("before FROM stands no column", self.tokens[at - 1].text, hint, self.tokens[at])
        select.listing, select.source = False, at
        way = f"concat({PATH_COLUMN}, '{select.number}.') AS {PATH_COLUMN}" if several else PATH_COLUMN
        self.added.append((self.tokens[at].start, f", {RECORD_COLUMN}, {way} "))

    def _closed(self, select: Open) -> None:
        if select.listing:
            hint = "let each SELECT read a topic that READ names, or a SELECT that does"
            raise self.clauses.error("this SELECT reads no topic", select.token.text, hint, select.token)


def rewrite_select(clauses: SinkClauses, sql: str, topics: Sequence[str]) -> RewrittenSelect:
    """The SELECT behind clauses that are read. DeclarationError, with the place, if it is no work for a sink."""
    select = Select(clauses, sql, [t for t in clauses.tokens if clauses.begins <= t.start < clauses.begins + len(sql)])
    for topic in topics:
        if not select.reads(topic):
            hint = f"leave its READ out, or name it in FROM: `{topic}`"
            raise clauses.error(
                "the SELECT does not read this topic", topic, hint, clauses.clause_tokens[f"READ {topic}"]
            )
    made = select.rewritten()
    if not made.added:
        raise clauses.error_at("the SELECT reads no topic", excerpt(sql), "write SELECT ... FROM", clauses.begins)
    return made
