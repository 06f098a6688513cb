"""Refuses statements of captures whose pages would not be rows of their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from penstock.errors import DeclarationError, PenstockError
from penstock.model.checks.schema_checks import COLUMNS_NOT_OF_SCHEMA, SELECT_FIELDS, column_mismatch
from penstock.model.sql.capture_clauses import CaptureClauses, own_columns
from penstock.model.sql.lexer import excerpt
from penstock.model.sql.volatile_functions import VOLATILE_TEXTS, momentary

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.registry_schema import RegistrySchema

# Clauses that a capture cannot have, by the argument of sqlglot's Select.
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
SYSTEM_COLUMNS = {"xmin", "xmax", "cmin", "cmax", "ctid", "tableoid"}
TIMES_OF_SQLITE = {"DATE", "TIME", "DATETIME", "JULIANDAY", "UNIXEPOCH", "STRFTIME"}
MOMENT = "this says another thing at each poll"
LEAVE_OUT = "leave it out: each poll would take every row for a changed one"
AS_THEY_ARE = "select the rows as they are: one per key, in no order"


class Refuse(Protocol):
    """Creates the error of a node; `word` is the SQL word at fault, if it is not the node itself."""

    def __call__(self, what: str, node: exp.Expr, hint: str, word: str = "") -> PenstockError: ...


def check(capture: Capture, clauses: CaptureClauses) -> None:
    """DeclarationError if pages of the capture would not be rows of its table. clauses: as they were read."""
    pieces: list[tuple[exp.Expr, str, int]] = [(capture.select, capture.sql, clauses.begins)]
    if capture.deleted is not None:
        pieces.append((capture.deleted, capture.deleted_sql, clauses.condition))
    for tree, text, begins in pieces:
        end = begins + len(text)
        own_tokens = [token for token in clauses.tokens if begins <= token.start < end]
        if capture.dialect == "mysql":
            for token in own_tokens:
                if any(comment.startswith(("!", "M!")) for comment in token.comments):
                    at = clauses.text.index("/*", token.start)
                    got = excerpt(clauses.text[at:])
                    raise clauses.error_at("the server would run this comment", got, "say it without /*! */", at)
        for token, call in momentary(own_tokens, capture.dialect):
            raise clauses.error(MOMENT, call, LEAVE_OUT, token)

        def refuse(
            what: str,
            node: exp.Expr,
            hint: str,
            word: str = "",
            begins: int = begins,
            own_tokens: list[Token] = own_tokens,
        ) -> DeclarationError:
            at = begins + _start(node)
            named = [token.start for token in own_tokens if word and token.text.upper().startswith(word.split()[0])]
            at = max((start for start in named if start <= at), default=min(named, default=at))
            return clauses.error_at(what, word if word.isupper() else excerpt(node.sql(capture.dialect)), hint, at)

        check_query(tree, capture.dialect, refuse)
    if capture.delay >= capture.hold:
        hint = "a transaction is waited for as long as HOLD says at most: make it longer than DELAY"
        start = clauses.clause_tokens.get("DELAY") or clauses.clause_tokens.get("HOLD") or clauses.peek()
        raise clauses.error("DELAY is not shorter than HOLD", f"{capture.delay} and {capture.hold}", hint, start)
    if capture.columns is not None:
        _check_columns(capture, capture.columns, clauses)
    if capture.topic.registry_schema:
        _check_schema(capture, capture.topic.registry_schema, clauses)
    if capture.dialect == "postgres":
        _check_system_columns(capture, clauses)


AGGREGATE = (
    "take MIN, MAX, COUNT, or GROUP_CONCAT with ORDER BY, of columns that name their table, in a subquery as column"
)


def check_query(tree: exp.Expr, dialect: str, refuse: Refuse) -> None:
    """Raise the error of `refuse` for a part of a SELECT or condition that prevents paging."""
    for node in tree.walk():
        if isinstance(node, exp.Query) and (node is tree or _in_from(node)):
            _check_rows(node, refuse)
        elif isinstance(node, exp.Select) and node.args.get("limit") and not node.args.get("order"):
            if not isinstance(node.parent, exp.Exists):
                raise refuse("which rows LIMIT takes is not said", node.args["limit"], "say it by ORDER BY", "LIMIT")
        elif isinstance(node, exp.TableSample):
            raise refuse("each poll would see other rows", node, "leave it out", "TABLESAMPLE")
        elif isinstance(node, exp.Version) and node.args.get("kind") != "AS OF":
            raise refuse("a key would have as many rows as versions", node.parent or node, "leave the versions out")
        if isinstance(node, exp.AggFunc | exp.Window) and not _of_subquery(node, tree):
            raise refuse("a capture has no aggregates", node, "leave it out, or " + AGGREGATE)
        if isinstance(node, exp.Literal) and _now(node, dialect):
            raise refuse(MOMENT, node, LEAVE_OUT)
        if dialect == "sqlite" and isinstance(node, exp.Literal) and _of_the_machine(node):
            hint = "leave it out, and make a local time of it where it is read"
            raise refuse("this is another time on each machine, by its time zone", node, hint)
        if isinstance(node, exp.Parameter | exp.SessionParameter):
            raise refuse("a variable is another in each session", node, "write the value", "@")
        if isinstance(node, exp.Placeholder):
            raise refuse("a capture has no parameters", node, "write the value")
        if isinstance(node, exp.UDTF | exp.Explode | exp.ExplodingGenerateSeries) and _is_column(node, tree):
            raise refuse("this makes several rows of one", node, "leave it out: a key has one row")


def _check_rows(query: exp.Query, refuse: Refuse) -> None:
    """Check a query whose rows are paged."""
    if isinstance(query, exp.SetOperation):
        name, hint = type(query).__name__.upper(), "make a capture of each part, each into a topic of its own"
        raise refuse(f"a capture cannot page through {name}", query.expression, hint, name)
    for word in query.args.get("operation_modifiers") or ():
        if word.name.upper() != "STRAIGHT_JOIN":
            raise refuse("this stands only in a SELECT that is sent alone", query, "leave it out", word.name.upper())
    for argument, name in REFUSED.items():
        if part := query.args.get(argument):
            at = part[0] if isinstance(part, list) else part
            node = at if isinstance(at, exp.Expr) else query
            raise refuse(f"a capture cannot page through {name}", node, AS_THEY_ARE, name)


def _in_from(query: exp.Query) -> bool:
    """Whether its rows are a table to the query around it."""
    around = query.parent
    while isinstance(around, exp.Subquery | exp.Lateral | exp.SetOperation | exp.Paren):
        around = around.parent
    return isinstance(around, exp.From | exp.Join)


def _of_subquery(node: exp.Expr, tree: exp.Expr) -> bool:
    """Whether an aggregate is deterministic and aggregates the rows of a subquery."""
    around = node.find_ancestor(exp.Select)
    if around is None or around is tree or _in_from(around) or isinstance(node.parent, exp.Window):
        return False
    # An aggregate of columns of the outer query belongs to the outer query.
    own = {source.alias_or_name for source in around.find_all(exp.Table) if source.find_ancestor(exp.Select) is around}
    if any(column.table not in own for column in node.find_all(exp.Column)):
        return False
    ordered = isinstance(node, exp.GroupConcat) and node.find(exp.Order) is not None
    return ordered or isinstance(node, exp.Min | exp.Max | exp.Count)


def _is_column(node: exp.Expr, tree: exp.Expr) -> bool:
    select = node.find_ancestor(exp.Select, exp.From, exp.Join)
    return isinstance(select, exp.Select) and (select is tree or _in_from(select))


def _now(literal: exp.Literal, dialect: str) -> bool:
    """Whether a text is a time of now: in a function, a cast, and in PostgreSQL where it is compared."""
    if not literal.is_string or literal.this.strip().lower() not in VOLATILE_TEXTS[dialect]:
        return False
    around = literal.parent
    if isinstance(around, exp.Cast) and around.to.is_type(*exp.DataType.TEXT_TYPES):
        return False
    compared = dialect == "postgres" and isinstance(around, exp.Predicate)
    return compared or isinstance(around, exp.Func)


def _of_the_machine(literal: exp.Literal) -> bool:
    """Whether a string is a time zone modifier of a time function of SQLite."""
    if not literal.is_string or literal.this.strip().lower() not in ("localtime", "utc"):
        return False
    function = literal.parent
    return isinstance(function, exp.Anonymous) and function.name.upper() in TIMES_OF_SQLITE


def _start(node: exp.Expr) -> int:
    """The offset of a node in its text; 0 if it is unknown."""
    offsets = [one.meta["start"] for one in node.walk() if "start" in one.meta]
    return min(offsets, default=0)


def _check_system_columns(capture: Capture, clauses: CaptureClauses) -> None:
    """A row's place changes with each UPDATE, and the numbers of transactions begin again after four billions."""
    for clause, names in (("KEY", capture.key), ("CURSOR", (capture.cursor,))):
        for written in (e for e in capture.select.expressions if e.alias_or_name in names):
            if system_column := next(
                (c for c in written.find_all(exp.Column) if c.name.lower() in SYSTEM_COLUMNS), None
            ):
                hint = "take a column of the table; for CURSOR a time, or a number from a sequence, set at each change"
                what = f"{clause} is made of what PostgreSQL keeps of a row for itself, and gives again"
                raise clauses.error(what, system_column.sql("postgres"), hint, clauses.clause_tokens[clause])


def _check_columns(capture: Capture, columns: list[str], clauses: CaptureClauses) -> None:
    names = ", ".join(columns)
    if "" in columns or len(set(columns)) < len(columns):
        hint = "give each column of the SELECT a name of its own, by AS"
        raise clauses.error("columns without a name, or with one name", names, hint, clauses.peek())
    used = [("KEY", name) for name in capture.key] + [("CURSOR", capture.cursor)]
    if capture.deleted is not None:
        used += [("DELETED", column.name) for column in own_columns(capture.deleted)]
    for clause, name in used:
        if name not in columns:
            hint = f"take one of the SELECT's columns: {names}"
            raise clauses.error(
                f"{clause} names a column that is not selected", name, hint, clauses.clause_tokens[clause]
            )


def _check_schema(capture: Capture, schema: RegistrySchema, clauses: CaptureClauses) -> None:
    token = clauses.clause_tokens["CAPTURE"]
    for field in schema.fields:
        leaf = field.type
        while leaf.kind == "array" and leaf.element:
            leaf = leaf.element
        if leaf.kind in ("struct", "map"):
            hint = "declare it as string: JSON is captured as text"
            raise clauses.error("no column is captured as this type", f"{field.name}: {field.type}", hint, token)
    if capture.columns is not None and (got := column_mismatch(schema, capture.columns)):
        raise clauses.error(COLUMNS_NOT_OF_SCHEMA, got, SELECT_FIELDS, token)
