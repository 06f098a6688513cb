"""The types by which a table can be paged: their values must be equal for the database when they are sent back.

A key is compared by the database only. A cursor is compared by Python too, so both must have the same order. The type
of a result's column becomes an `Ordering`; an unknown type cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from pymysql.constants import FIELD_TYPE, FLAG


@dataclass(frozen=True)
class Ordering:
    """How the database orders the values of a column.

    Attributes:
        kind: The type's name in SQL.
        types: Python types of its values.
        why_not: Why it can be neither key nor cursor; empty if it can.
        instead: An expression to select in its place, `{}` standing for the column's name.
        collated: It is text, ordered by its collation.
        cursor: It has a greatest value, and Python orders it as the database does; text, if its collation is by code
            point.
        zoned: Its values are times with a zone.
        longest: Characters of a value up to which all of it decides its order; 0 if there is no bound.
    """

    kind: str
    types: tuple[type, ...] = ()
    why_not: str = ""
    instead: str = ""
    collated: bool = False
    cursor: bool = True
    zoned: bool = False
    longest: int = 0


# What MySQL's metadata tell of a column: (type, flags, number of the character set).
MySQLColumn = tuple[int, int, int]
BINARY = 63
# Casts to text without loss.
AS_TEXT = {"mysql": "CAST({} AS CHAR)", "postgres": "CAST({} AS text)", "sqlite": "CAST({} AS TEXT)"}
# Casts of text to bytes, for invalid text.
AS_BYTES = {
    "mysql": "CAST({} AS BINARY)",
    "postgres": "convert_to({}, getdatabaseencoding())",
    "sqlite": "CAST({} AS BLOB)",
}
# Types that are text or bytes depending on the character set; a server sends TEXT as BLOB.
TEXTS = {FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, FIELD_TYPE.BLOB}
# Characters up to which a server orders text by the whole value; no index of InnoDB has more.
LONGEST = 3072
_BY_NUMBER = "it is put in order by number and compared as text"
_MYSQL: dict[int, Ordering] = {
    FIELD_TYPE.TINY: Ordering("TINYINT", (int,)),
    FIELD_TYPE.SHORT: Ordering("SMALLINT", (int,)),
    FIELD_TYPE.INT24: Ordering("MEDIUMINT", (int,)),
    FIELD_TYPE.LONG: Ordering("INT", (int,)),
    FIELD_TYPE.LONGLONG: Ordering("BIGINT", (int,)),
    FIELD_TYPE.YEAR: Ordering("YEAR", (int,)),
    FIELD_TYPE.DECIMAL: Ordering("DECIMAL", (Decimal,)),
    FIELD_TYPE.NEWDECIMAL: Ordering("DECIMAL", (Decimal,)),
    FIELD_TYPE.DOUBLE: Ordering("DOUBLE", (float,)),
    FIELD_TYPE.DATE: Ordering("DATE", (date,)),
    FIELD_TYPE.NEWDATE: Ordering("DATE", (date,)),
    FIELD_TYPE.DATETIME: Ordering("DATETIME", (datetime,)),
    FIELD_TYPE.TIMESTAMP: Ordering("TIMESTAMP", (datetime,)),
    FIELD_TYPE.TIME: Ordering("TIME", (timedelta,)),
    FIELD_TYPE.BIT: Ordering("BIT", why_not="it is read as bytes and compared as a number", instead="{} + 0"),
}
_STRING = Ordering("VARCHAR", (str,), collated=True, longest=LONGEST)
_BYTES = Ordering("VARBINARY", (bytes,), longest=LONGEST)


def mysql_ordering(column: MySQLColumn) -> Ordering:
    kind, flags, charset = column
    for flag, name in ((FLAG.ENUM, "ENUM"), (FLAG.SET, "SET")):
        if flags & flag:
            return Ordering(name, why_not=_BY_NUMBER, instead="CAST({} AS CHAR)")
    if kind in TEXTS:
        return _BYTES if charset == BINARY else _STRING
    return _MYSQL.get(
        kind, Ordering(f"number {kind}", why_not="its order is not known here", instead="CAST({} AS CHAR)")
    )


# By the name in pg_type. What is read as text here is compared with the value that the text stands for.
_POSTGRES: dict[str, Ordering] = {
    "int2": Ordering("smallint", (int,)),
    "int4": Ordering("integer", (int,)),
    "int8": Ordering("bigint", (int,)),
    "numeric": Ordering("numeric", (Decimal,)),
    "float8": Ordering("double precision", (float,)),
    "float4": Ordering(
        "real",
        why_not="a number of its six digits is not the same as the value",
        instead="CAST({} AS double precision)",
    ),
    "bool": Ordering("boolean", (bool,), cursor=False),
    "text": Ordering("text", (str,), collated=True),
    "varchar": Ordering("varchar", (str,), collated=True),
    "bpchar": Ordering("char", (str,), cursor=False),
    "name": Ordering("name", (str,), collated=True),
    "citext": Ordering("citext", (str,), cursor=False),
    "uuid": Ordering("uuid", (UUID,), cursor=False),
    "bytea": Ordering("bytea", (bytes,), cursor=False),
    "date": Ordering("date", (date,)),
    "time": Ordering("time", (time,)),
    "timestamp": Ordering("timestamp", (datetime,)),
    "timestamptz": Ordering("timestamptz", (datetime,), zoned=True),
    "inet": Ordering("inet", (str,), cursor=False),
    "cidr": Ordering("cidr", (str,), cursor=False),
    "macaddr": Ordering("macaddr", (str,), cursor=False),
    "interval": Ordering(
        "interval",
        why_not="months and days are the same to it as other hours",
        instead="CAST(EXTRACT(EPOCH FROM {}) AS numeric)",
    ),
}


def postgres_ordering(name: str, kind: str) -> Ordering:
    """name and kind: typname and typtype of pg_type."""
    if kind == "e":
        return Ordering(f"enum {name}", (str,), cursor=False)
    unknown = Ordering(name, why_not="its order is not known here", instead="CAST({} AS text)")
    return _POSTGRES.get(name, unknown) if kind == "b" else unknown


# SQLite's types belong to values: a column may hold several, and only numbers are one class.
CLASSES: Mapping[type, str] = {int: "number", float: "number", str: "text", bytes: "blob"}
SQLITE_ORDERING = Ordering("")
