"""A random table and a random capture over it, both generated from a seed without code of the platform."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos.histories import kinds
from tests.chaos.histories.kinds import Cursor, Kind

# Names that mean something to SQL, to parameters or to people; none differs from another by case alone.
NAMES = (
    "order", "group", "user", "select", "value", "Straße", "with space", "per%cent", "colon:name", "MixedCase", "名前",
    "key", "rank", "a.b", "x1", "penstock", "topic", "json", "date", "condition", "semi;colon", "dash-ed", "hash#tag",
)  # fmt: skip
# Histories that share servers at a time. A transaction that is held keeps the marks of all of them back, and what
# is lost without one cannot be: every other batch has none.
AT_ONCE = 12
FEATURES = ("shadow", "alter", "join", "two-phase", "slow", "snapshot")
WHERES = ("{grade} < 80", "{grade} >= 0 OR {txt} IS NULL", "{txt} IS NULL OR {txt} <> 'a'", "NOT {grade} IN (1, 2, 3)")


@dataclass(frozen=True)
class Dialect:
    """An engine as its tables are written. name: as a capture says it; mark: quotes a name."""

    name: str
    mark: str
    kinds: list[Kind]
    cursors: list[Cursor]
    expressions: list[tuple[str, str]]
    words: str
    whole: str
    flag: str
    gone: tuple[str, ...]

    def quote(self, name: str) -> str:
        return f"{self.mark}{name}{self.mark}"


DIALECTS = {
    "mariadb": Dialect("mysql", "`", kinds.MARIADB, kinds.MYSQL_CURSORS, kinds.MYSQL_EXPRESSIONS,
                       "VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "whole", "BOOLEAN",
                       ("gone", "gone = 1", "NOT gone = 0", "gone AND grade >= 0")),
    "mysql": Dialect("mysql", "`", kinds.MYSQL, kinds.MYSQL_CURSORS, kinds.MYSQL_EXPRESSIONS,
                     "VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "whole", "BOOLEAN",
                     ("gone", "gone = 1", "NOT gone = 0", "gone AND grade >= 0")),
    "postgres": Dialect("postgres", '"', kinds.POSTGRES, kinds.POSTGRES_CURSORS, kinds.POSTGRES_EXPRESSIONS,
                        "text", "whole", "boolean", ("gone", "gone IS TRUE", "gone AND grade >= 0")),
    "sqlite": Dialect("sqlite", '"', kinds.SQLITE, kinds.SQLITE_CURSORS, kinds.SQLITE_EXPRESSIONS,
                      "TEXT", "given", "INTEGER", ("gone", "gone = 1", "gone <> 0 AND grade >= 0")),
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Out:
    """A column of the capture's SELECT. sql: what stands there, over the table's columns; form: see `kinds`."""

    name: str
    sql: str
    form: str


@dataclass
class History:
    """One table, its capture and what may happen to it.

    pool: the keys that rows may have, as SQL; values: columns that change and mean nothing; removes: whether rows may
    leave without a tombstone, which no poll can see; stale: whether a row may change without its cursor; long: whether
    transactions are held: while one is open nothing else can go wrong.
    """

    seed: int
    name: str
    engine: str
    dialect: Dialect
    key: list[Column]
    cursor: Cursor
    cursor_name: str
    values: list[Column]
    pool: list[tuple[str, ...]]
    star: bool
    out: list[Out]
    key_out: list[str]
    cursor_out: str
    where: str
    deleted: str
    join: bool
    clauses: str
    delay: float
    features: frozenset[str]
    removes: bool
    stale: bool
    partitions: int
    long: bool

    def quote(self, name: str) -> str:
        return self.dialect.quote(name)

    @property
    def table(self) -> str:
        return self.quote(self.name)

    def columns(self) -> list[tuple[str, str]]:
        """(name, type) of all columns, in the table's order."""
        d = self.dialect
        cursor = self.cursor.ddl + (" NULL DEFAULT NULL" if not self.cursor.auto else "")
        if self.cursor.auto:
            digits = self.cursor.ddl.partition("(")[2].rstrip(")") or "0"
            now = f"CURRENT_TIMESTAMP({digits})"
            cursor += f" NULL DEFAULT {now} ON UPDATE {now}"
        return [
            *((c.name, c.kind.ddl.removesuffix(" NULL") + " NOT NULL") for c in self.key),
            ("version", "BIGINT NOT NULL"), ("grade", "INTEGER NOT NULL"), ("txt", f"{d.words} NULL"),
            ("gone", f"{d.flag} NOT NULL"), ("settled", "INTEGER NOT NULL DEFAULT 0"),
            *((c.name, c.kind.ddl) for c in self.values),
            (self.cursor_name, cursor),
        ]  # fmt: skip

    def ddl(self) -> list[str]:
        """The statements that make its tables."""
        columns = ", ".join(f"{self.quote(name)} {kind}" for name, kind in self.columns())
        key = ", ".join(self.quote(c.name) for c in self.key)
        behind = " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4" if self.dialect.name == "mysql" else ""
        ddl = [f"CREATE TABLE {self.table} ({columns}, PRIMARY KEY ({key})){behind}"]
        if random.Random(self.seed).random() < 0.8:
            ddl.append(f"CREATE INDEX {self.quote(self.name + '_c')} ON {self.table} ({self.quote(self.cursor_name)})")
        if self.join:
            ddl.append(f"CREATE TABLE {self.quote(self.name + '_d')} (part INTEGER PRIMARY KEY, label VARCHAR(20))")
            ddl += [f"INSERT INTO {self.quote(self.name + '_d')} VALUES ({n}, 'label {n}')" for n in range(-6, 7)]
        return ddl

    def source(self) -> str:
        """FROM and WHERE of the capture's SELECT."""
        joined = f" AS t JOIN {self.quote(self.name + '_d')} AS d ON d.part = t.grade % 7" if self.join else ""
        return f"FROM {self.table}{joined}" + (f" WHERE {self.where}" if self.where else "")

    def select(self) -> str:
        """The capture's SELECT."""
        if self.star:
            return f"SELECT * {self.source()}"
        columns = (o.sql if o.sql == self.quote(o.name) else f"{o.sql} AS {self.quote(o.name)}" for o in self.out)
        return f"SELECT {', '.join(columns)} {self.source()}"

    def declaration(self) -> str:
        """The capture's file."""
        key = ", ".join(f'"{name}"' for name in self.key_out)
        deleted = f"DELETED WHEN ({self.deleted})\n" if self.deleted else ""
        return (
            f"CAPTURE INTO {self.name} PARTITIONS {self.partitions}\nFROM {self.dialect.name} {self.engine}\n"
            f'KEY ({key}) CURSOR "{self.cursor_out}"\n{deleted}{self.clauses}\nAS\n{self.select()}\n'
        )


def history(seed: int, number: int, engine: str, without: frozenset[str], attempt: int = 0) -> History:
    """The history of that number; attempt: another one in its place."""
    chance, d = random.Random(f"{seed}/{number}/{engine}/{attempt}"), DIALECTS[engine]
    features = frozenset(f for f in FEATURES if f not in without and chance.random() < 0.25)
    names = chance.sample(NAMES, len(NAMES))
    plain = chance.random() < 0.3

    def name(role: str) -> str:
        return role if plain else names.pop()

    able = [k for k in d.kinds if k.key]
    key = [Column(name(f"id{n}"), chance.choice(able)) for n in range(chance.choice((1, 1, 2, 3)))]
    values = [Column(name(f"v{n}"), chance.choice(d.kinds)) for n in range(chance.randint(1, 5))]
    cursor, cursor_name = chance.choice(d.cursors), name("changed")
    if not attempt:
        # Each type in its turn, so that a long run leaves none out.
        turn, order = number // len(DIALECTS), random.Random(f"{seed}/{engine}")
        key[0] = Column(key[0].name, order.sample(able, len(able))[turn % len(able)])
        cursor = order.sample(d.cursors, len(d.cursors))[turn % len(d.cursors)]
    pool = [tuple(c.kind.literal(chance) for c in key) for _ in range(chance.choice((20, 50, 80)))]

    join = "join" in features
    at = "t." if join else ""
    form = "" if chance.random() < 0.5 else "list"
    plan = [(c.name, c.kind.form) for c in key] + [("version", d.whole), ("grade", d.whole)]
    plan += [("txt", "given" if engine == "sqlite" else "text"), ("gone", _flag(engine))]
    plan += [("settled", d.whole)]
    plan += [(c.name, c.kind.form) for c in values] + [(cursor_name, cursor.form)]
    out = [Out(n, f"{at}{d.quote(n)}", f) for n, f in plan]
    key_out, cursor_out = [c.name for c in key], cursor_name
    star = not form and not join and "shadow" not in features
    if not star:
        chance.shuffle(out)
        out += [
            Out(f"e{n}", sql.format(grade=f"{at}grade", txt=f"{at}txt"), f)
            for n, (sql, f) in enumerate(chance.sample(d.expressions, 3))
        ]
        if join:
            out.append(Out("label", "d.label", "given" if engine == "sqlite" else "text"))
        if "shadow" in features:
            out, key_out, cursor_out = _shadowed(out, key_out, cursor_out, chance)
    where = chance.choice(WHERES).format(grade=f"{at}grade", txt=f"{at}txt") if chance.random() < 0.3 else ""
    removes = bool(where) or chance.random() < 0.5
    every = "3 SECONDS" if "slow" in features else f"{chance.choice((100, 300, 1000))} MILLISECONDS"
    return History(
        seed=chance.getrandbits(32), name=f"h{number:04d}{'abcdefgh'[attempt]}", engine=engine, dialect=d, key=key,
        cursor=cursor, cursor_name=cursor_name, values=values, pool=pool, star=star, out=out, key_out=key_out,
        cursor_out=cursor_out, where=where, join=join, delay=3.0, features=features, removes=removes,
        stale=join and chance.random() < 0.5, partitions=chance.choice((1, 1, 2, 3)),
        deleted=chance.choice(d.gone) if chance.random() < 0.6 else "",
        long=chance.random() < 0.5 and number // AT_ONCE % 2 == 0,
        # A reconcile runs on request only, so that the effect of polls can be checked before.
        clauses=f"EVERY {every} OVERLAP 2 SECONDS DELAY 3 SECONDS HOLD {chance.choice((4, 40))} SECONDS "
        "RECONCILE EVERY 36500 DAYS REMOVES 100 PERCENT",
    )  # fmt: skip


def _flag(engine: str) -> str:
    return {"postgres": "truth", "sqlite": "given"}.get(engine, "whole")


def _shadowed(out: list[Out], key: list[str], cursor: str, chance: random.Random) -> tuple[list[Out], list[str], str]:
    """The names of some columns changed about, the key's and the cursor's among them."""
    fixed = {"version", "gone", "grade", "txt", "settled"}
    fixed |= {o.name for o in out if o.sql.endswith(")") or " " in o.sql}
    names = [o.name for o in out if o.name not in fixed and o.name[0] != "e"]
    other = dict(zip(names, chance.sample(names, len(names)), strict=True))
    renamed = [Out(other.get(o.name, o.name), o.sql, o.form) for o in out]
    return renamed, [other.get(k, k) for k in key], other.get(cursor, cursor)
