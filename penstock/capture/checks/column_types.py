"""By which types a table can be paged: those whose values mean to the database what they were when they are sent back.

A key must be told apart and ordered by the database alone. A cursor is compared here too, so its order must also be
Python's. What an engine says of a result's columns is turned into an `Order`; an unknown type has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from pymysql.constants import FIELD_TYPE, FLAG


@dataclass(frozen=True)
class Order:
    """How the values of a column are ordered.

    kind: the type as people name it; types: of its values in Python; why_not: why neither key nor cursor, empty if it
    is fit; cure: an expression to select instead, `{}` for the column's name; collated: text, whose order its collation
    makes; cursor: whether it has a greatest value, and
    Python's order is the database's, for text if the collation is by code point; zoned: times with a zone; longest:
    characters of a value that is surely put in order by all of it, 0 for any.
    """

    kind: str
    types: tuple[type, ...] = ()
    why_not: str = ""
    cure: str = ""
    collated: bool = False
    cursor: bool = True
    zoned: bool = False
    longest: int = 0


# What MySQL's metadata tell of a column: (type, flags, number of the character set).
MySQLColumn = tuple[int, int, int]
BINARY = 63
# What makes text of a column without loss: PostgreSQL's CHAR is one character.
AS_TEXT = {"mysql": "CAST({} AS CHAR)", "postgres": "CAST({} AS text)", "sqlite": "CAST({} AS TEXT)"}
# What makes bytes of a text, where texts may be none.
AS_BYTES = {
    "mysql": "CAST({} AS BINARY)",
    "postgres": "convert_to({}, getdatabaseencoding())",
    "sqlite": "CAST({} AS BLOB)",
}
# Types that are text with a character set and bytes without; a server sends every TEXT and BLOB as BLOB.
TEXTS = {FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, FIELD_TYPE.BLOB}
# Characters of a text that a server surely puts in order by all of it; no index of InnoDB holds more.
LONGEST = 3072
_BY_NUMBER = "it is put in order by number and compared as text"
_MYSQL: dict[int, Order] = {
    FIELD_TYPE.TINY: Order("TINYINT", (int,)),
    FIELD_TYPE.SHORT: Order("SMALLINT", (int,)),
    FIELD_TYPE.INT24: Order("MEDIUMINT", (int,)),
    FIELD_TYPE.LONG: Order("INT", (int,)),
    FIELD_TYPE.LONGLONG: Order("BIGINT", (int,)),
    FIELD_TYPE.YEAR: Order("YEAR", (int,)),
    FIELD_TYPE.DECIMAL: Order("DECIMAL", (Decimal,)),
    FIELD_TYPE.NEWDECIMAL: Order("DECIMAL", (Decimal,)),
    FIELD_TYPE.DOUBLE: Order("DOUBLE", (float,)),
    FIELD_TYPE.DATE: Order("DATE", (date,)),
    FIELD_TYPE.NEWDATE: Order("DATE", (date,)),
    FIELD_TYPE.DATETIME: Order("DATETIME", (datetime,)),
    FIELD_TYPE.TIMESTAMP: Order("TIMESTAMP", (datetime,)),
    FIELD_TYPE.TIME: Order("TIME", (timedelta,)),
    FIELD_TYPE.BIT: Order("BIT", why_not="it is read as bytes and compared as a number", cure="{} + 0"),
}
_STRING = Order("VARCHAR", (str,), collated=True, longest=LONGEST)
_BYTES = Order("VARBINARY", (bytes,), longest=LONGEST)


def of_mysql(about: MySQLColumn) -> Order:
    kind, flags, charset = about
    for flag, name in ((FLAG.ENUM, "ENUM"), (FLAG.SET, "SET")):
        if flags & flag:
            return Order(name, why_not=_BY_NUMBER, cure="CAST({} AS CHAR)")
    if kind in TEXTS:
        return _BYTES if charset == BINARY else _STRING
    return _MYSQL.get(kind, Order(f"number {kind}", why_not="its order is not known here", cure="CAST({} AS CHAR)"))


# By the name in pg_type. What is read as text here is compared with the value that the text stands for.
_POSTGRES: dict[str, Order] = {
    "int2": Order("smallint", (int,)),
    "int4": Order("integer", (int,)),
    "int8": Order("bigint", (int,)),
    "numeric": Order("numeric", (Decimal,)),
    "float8": Order("double precision", (float,)),
    "float4": Order(
        "real", why_not="a number of its six digits is not the same as the value", cure="CAST({} AS double precision)"
    ),
    "bool": Order("boolean", (bool,), cursor=False),
    "text": Order("text", (str,), collated=True),
    "varchar": Order("varchar", (str,), collated=True),
    "bpchar": Order("char", (str,), cursor=False),
    "name": Order("name", (str,), collated=True),
    "citext": Order("citext", (str,), cursor=False),
    "uuid": Order("uuid", (UUID,), cursor=False),
    "bytea": Order("bytea", (bytes,), cursor=False),
    "date": Order("date", (date,)),
    "time": Order("time", (time,)),
    "timestamp": Order("timestamp", (datetime,)),
    "timestamptz": Order("timestamptz", (datetime,), zoned=True),
    "inet": Order("inet", (str,), cursor=False),
    "cidr": Order("cidr", (str,), cursor=False),
    "macaddr": Order("macaddr", (str,), cursor=False),
    "interval": Order(
        "interval",
        why_not="months and days are the same to it as other hours",
        cure="CAST(EXTRACT(EPOCH FROM {}) AS numeric)",
    ),
}


def of_postgres(name: str, kind: str) -> Order:
    """name and kind: typname and typtype of pg_type."""
    if kind == "e":
        return Order(f"enum {name}", (str,), cursor=False)
    other = Order(name, why_not="its order is not known here", cure="CAST({} AS text)")
    return _POSTGRES.get(name, other) if kind == "b" else other


# SQLite's types belong to values: a column may hold several, and only numbers are one class.
CLASSES: Mapping[type, str] = {int: "number", float: "number", str: "text", bytes: "blob"}
OF_SQLITE = Order("")
