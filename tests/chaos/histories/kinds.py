"""The types of columns that a history may have, of each engine: how one is declared, and values of it as SQL says them.

form: which of the checker's forms its value has in the topic.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Chance = random.Random
Literal = Callable[[Chance], str]

# What tends to be taken for something else: by collations, by parameters, by quoting.
WORDS = (
    "", "a", "A", "b", "B", "é", "É", "e\u0301", "ß", "ss", "ä", "z", "Z", "_", "10", "9", "漢字", "😀", "a b",
    "a ", " a", "tab\there", "line\nbreak", "quo'te", "dou\"ble", "back\\slash", "per%cent",
    "%s", ":colon", "$1", "NULL", "{}",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One type. literal: makes a value; form: see the module; key: whether it may be part of a key."""

    ddl: str
    literal: Literal
    form: str = "text"
    key: bool = True


@dataclass(frozen=True)
class Cursor:
    """One type of cursor. drawn: SQL of the next value, with {skew} seconds taken off; auto: the table draws it by
    itself; ahead: a value that is yet to come; null: whether rows may have none."""

    ddl: str
    drawn: str
    form: str = "moment"
    auto: bool = False
    ahead: str = ""


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def escaped(text: str) -> str:
    return quoted(text.replace("\\", "\\\\"))


def words(longest: int, quote: Callable[[str], str], encoding: str = "utf-8") -> Literal:
    """Text of so many characters at most."""

    def literal(chance: Chance) -> str:
        text = "".join(chance.choice(WORDS) for _ in range(chance.choice((1, 1, 2, 3))))
        return quote(text.encode(encoding, "ignore").decode(encoding)[: chance.randint(0, longest)])

    return literal


def large(quote: Callable[[str], str]) -> Literal:
    """Text that now and then is of some hundred kilobytes."""
    short = words(60, quote)

    def literal(chance: Chance) -> str:
        return quote("lärge " * chance.randrange(50_000)) if chance.random() < 0.01 else short(chance)

    return literal


def whole(low: int, high: int) -> Literal:
    def literal(chance: Chance) -> str:
        near = chance.randint(max(low, -60), min(high, max(low, -60) + 120))
        return str(chance.choice((near, near, near, chance.randint(low, high), low, high, min(high, low + 1))))

    return literal


def decimals(digits: int, scale: int) -> Literal:
    def literal(chance: Chance) -> str:
        number = chance.randint(-(10 ** chance.randint(1, digits)) + 1, 10 ** chance.randint(1, digits) - 1)
        text = str(abs(number)).zfill(scale + 1)
        return ("-" if number < 0 else "") + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)

    return literal


def reals(chance: Chance) -> str:
    return repr(chance.choice((0.0, 0.1, -0.1, 1e300, 1e-300, 2.0**53, chance.random(), chance.gauss(0, 1e6))))


def data(longest: int, form: str) -> Literal:
    """Bytes; form: how the engine writes them, from hexadecimal digits."""

    def literal(chance: Chance) -> str:
        count = chance.choice((0, 1, 2, longest))
        return form.format(bytes(chance.choice((0, 1, 32, 65, 97, 255)) for _ in range(count)).hex())

    return literal


def one_of(*values: str) -> Literal:
    return lambda chance: chance.choice(values)


def moments(digits: int, *, time: bool = True) -> Literal:
    def literal(chance: Chance) -> str:
        day = f"{chance.randint(1975, 2036):04d}-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}"
        # Not the hours that a change of summer time leaves out.
        clock = f"{chance.randint(4, 23):02d}:{chance.randint(0, 59):02d}:{chance.randint(0, 59):02d}"
        return f"'{day} {clock}{_fraction(chance, digits)}'" if time else f"'{day}'"

    return literal


def clocks(digits: int, highest: int, *, below: bool) -> Literal:
    def literal(chance: Chance) -> str:
        sign = "-" if below and chance.random() < 0.3 else ""
        clock = f"{chance.randint(0, highest):02d}:{chance.randint(0, 59):02d}:{chance.randint(0, 58):02d}"
        return f"'{sign}{clock}{_fraction(chance, digits)}'"

    return literal


def _fraction(chance: Chance, digits: int) -> str:
    return f".{chance.randrange(10**digits):0{digits}d}" if digits else ""


def uuids(chance: Chance) -> str:
    digits = f"{chance.getrandbits(128):032x}"
    return f"'{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}'"


def networks(chance: Chance) -> str:
    return chance.choice(("'::'", "'::1'", f"'2001:db8::{chance.randrange(65536):x}'"))


JSONS = one_of("'{}'", "'[1, 2.50, null]'", '\'{"a": "b"}\'', "'1'", "'\"text\"'")

MYSQL = [
    *(Kind(name, whole(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), "whole")
      for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))),
    *(Kind(f"{name} UNSIGNED", whole(0, 2**bits - 1), "whole")
      for name, bits in (("TINYINT", 8), ("INT", 32), ("BIGINT", 64))),
    Kind("YEAR", whole(1970, 2037), "whole"),
    Kind("DECIMAL(20,4)", decimals(18, 4)), Kind("DECIMAL(12,0)", decimals(12, 0)),
    Kind("DECIMAL(60,25)", decimals(50, 25)),
    Kind("DOUBLE", reals, "real"),
    Kind("VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", words(40, escaped)),
    Kind("VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", words(40, escaped)),
    Kind("VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", words(40, escaped)),
    Kind("VARCHAR(40) CHARACTER SET latin1", words(40, escaped, "latin-1")),
    Kind("CHAR(12) CHARACTER SET ascii COLLATE ascii_bin", words(12, escaped, "ascii")),
    Kind("VARBINARY(20)", data(20, "x'{}'"), "base64"), Kind("BINARY(8)", data(8, "x'{}'"), "base64"),
    Kind("DATE", moments(0, time=False)),
    *(Kind(f"DATETIME({n})", moments(n), "moment") for n in (0, 3, 6)),
    *(Kind(f"TIMESTAMP({n}) NULL", moments(n), "moment") for n in (0, 6)),
    *(Kind(f"TIME({n})", clocks(n, 838, below=True), "clock") for n in (0, 2, 6)),
    Kind("ENUM('x','a','m')", one_of("'x'", "'a'", "'m'")), Kind("SET('x','a','m')", one_of("'x'", "'a,m'", "''")),
    Kind("BIT(12)", one_of("b'0'", "b'1'", "b'111100001111'"), "base64"),
    Kind("BOOLEAN", one_of("TRUE", "FALSE"), "whole"),
    Kind("BLOB", data(300, "x'{}'"), "base64", key=False),
    Kind("LONGTEXT CHARACTER SET utf8mb4", large(escaped), key=False),
    Kind("JSON", JSONS, key=False),
]  # fmt: skip
MARIADB = [*MYSQL, Kind("UUID", uuids), Kind("INET6", networks)]
POSTGRES = [
    *(Kind(name, whole(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), "whole")
      for name, bits in (("smallint", 16), ("integer", 32), ("bigint", 64))),
    Kind("numeric", decimals(30, 7)), Kind("numeric(20,4)", decimals(18, 4)),
    Kind("double precision", reals, "real"), Kind("real", one_of("0.1", "1.5", "-3e20"), "single", key=False),
    Kind("boolean", one_of("true", "false"), "truth"),
    *(Kind(name, words(40, quoted)) for name in ("text", 'text COLLATE "C"', "varchar(40)")),
    Kind("char(12)", words(12, quoted)),
    Kind("bytea", data(20, "'\\x{}'::bytea"), "bytea"),
    Kind("date", moments(0, time=False)),
    *(Kind(f"timestamp({n})", moments(n), "moment") for n in (0, 3, 6)),
    *(Kind(f"timestamptz({n})", moments(n), "zoned") for n in (0, 6)),
    *(Kind(f"time({n})", clocks(n, 23, below=False), "clock") for n in (0, 6)),
    Kind("uuid", uuids),
    Kind("interval", one_of("'1 mon 3 days'", "'-04:05:06.7'"), key=False),
    Kind("json", JSONS, key=False), Kind("jsonb", JSONS, key=False),
    Kind("inet", networks, key=False), Kind("integer[]", one_of("'{}'", "'{1,2,NULL}'"), "array", key=False),
]  # fmt: skip
SQLITE = [
    Kind("INTEGER", whole(-(2**63), 2**63 - 1), "given"), Kind("BIGINT", whole(-(2**31), 2**31), "given"),
    Kind("TEXT", words(40, quoted), "given"), Kind("VARCHAR(40)", words(40, quoted), "given"),
    Kind("TEXT COLLATE NOCASE", words(40, quoted), "given"),
    Kind("REAL", reals, "given"), Kind("BLOB", data(20, "x'{}'"), "base64"),
    Kind("DATETIME", moments(3), "given"), Kind("NUMERIC", one_of("1", "2.5", "'text'"), "given", key=False),
]  # fmt: skip

_NOW = "NOW(6) - INTERVAL {skew} SECOND"
_EPOCH = "EXTRACT(EPOCH FROM clock_timestamp()) - {skew}"
MYSQL_CURSORS = [
    *(Cursor(f"{name}({n})", f"NOW({n}) - INTERVAL {{skew}} SECOND", auto=auto, ahead="'2037-01-01'")
      for name in ("TIMESTAMP", "DATETIME") for n in (0, 3, 6) for auto in (False, True)),
    Cursor("BIGINT", f"CAST(UNIX_TIMESTAMP({_NOW}) * 1000000 AS SIGNED)", "whole"),
    Cursor("BIGINT UNSIGNED", f"CAST(UNIX_TIMESTAMP({_NOW}) * 1000 AS UNSIGNED)", "whole"),
    Cursor("DECIMAL(20,6)", f"UNIX_TIMESTAMP({_NOW})", "text"),
    Cursor("DATE", f"CAST({_NOW} AS DATE)", "text"),
]  # fmt: skip
POSTGRES_CURSORS = [
    *(Cursor(f"timestamptz({n})", f"{now}() - {{skew}} * interval '1 second'", "zoned", ahead="'2099-01-01'")
      for n in (0, 6) for now in ("clock_timestamp", "now", "statement_timestamp")),
    *(Cursor(f"timestamp({n})", "(clock_timestamp() - {skew} * interval '1 second') AT TIME ZONE 'UTC'",
             ahead="'2099-01-01'") for n in (3, 6)),
    Cursor("bigint", f"(({_EPOCH}) * 1000000)::bigint", "whole"), Cursor("numeric(20,6)", _EPOCH, "text"),
    Cursor("bigint", "nextval('histories')", "whole"),
]  # fmt: skip
SQLITE_CURSORS = [
    Cursor("TEXT", "strftime('%Y-%m-%d %H:%M:%f', 'now', '-{skew} seconds')", "given"),
    Cursor("INTEGER", "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - {skew} * 1000", "given"),
    Cursor("REAL", "julianday('now') - {skew} / 86400.0", "given"),
]

# Expressions over the columns `grade`, a whole number, and `txt`, text or NULL; with the form of what they give.
_EVERYWHERE = [
    ("{grade} + 1", "whole"), ("CASE WHEN {grade} > 50 THEN 'high' ELSE 'low' END", "text"),
    ("COALESCE({txt}, '-')", "text"), ("UPPER({txt})", "text"), ("{grade} % 7", "whole"),
]  # fmt: skip
MYSQL_EXPRESSIONS = [
    *_EVERYWHERE,
    ("CONCAT({txt}, ':', {grade})", "text"), ("IF({grade} > 3, {txt}, NULL)", "text"), ("MD5({txt})", "text"),
    ("CAST({grade} AS CHAR)", "text"), ("{grade} DIV 7", "whole"), ("{grade} / 7", "text"), ("LEFT({txt}, 2)", "text"),
    ("CHAR_LENGTH({txt})", "whole"), ("{txt} LIKE 'a%'", "whole"), ("{txt} <=> NULL", "whole"),
    ("SUBSTRING_INDEX({txt}, ' ', 1)", "text"), ("HEX({txt})", "text"), ("{grade} ^ 5", "whole"),
    ("LPAD({grade}, 5, '0')", "text"), ("{grade} BETWEEN 3 AND 9", "whole"), ("TRIM({txt})", "text"),
]  # fmt: skip
POSTGRES_EXPRESSIONS = [
    *_EVERYWHERE,
    ("{txt} || ':' || {grade}", "text"), ("{grade}::text", "text"), ("md5({txt})", "text"), ("{txt} ~ '^a'", "truth"),
    ("{grade}::numeric / 7", "text"), ("left({txt}, 2)", "text"), ("to_char({grade}, 'FM000')", "text"),
    ("char_length({txt})", "whole"), ("substring({txt} from 2 for 3)", "text"), ("{txt} ILIKE 'a%'", "truth"),
    ("ARRAY[{grade}, 1]", "array"), ("{txt} IS NOT DISTINCT FROM NULL", "truth"), ("{grade} # 5", "whole"),
    ("to_timestamp({grade})", "zoned"), ("make_date(2000, 1, 1) + {grade}", "text"),
]  # fmt: skip
SQLITE_EXPRESSIONS = [
    *((text, "given") for text, _ in _EVERYWHERE),
    ("{txt} || ':' || {grade}", "given"), ("substr({txt}, 2, 3)", "given"), ("printf('%03d', {grade})", "given"),
    ("length({txt})", "given"), ("hex({txt})", "given"), ("{grade} / 7", "given"), ("{grade} / 7.0", "given"),
    ("typeof({txt})", "given"), ("{txt} IS NULL", "given"), ("iif({grade} > 3, {txt}, NULL)", "given"),
]  # fmt: skip
