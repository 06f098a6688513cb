"""JSON objects of plain values, read without a JSON parser.

Parsing is most of a hot job's time. A text that a regular expression matches whole (an object of just the declared
fields, without escapes) says the same whichever way it is read, so its fields are cut out of it; every other text goes
through `from_json`. Which way a record takes changes its speed and nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame

CORRUPT = "_corrupt"

# Single characters: Java looks those up in a table, and ranges one by one.
DIGIT = "[0123456789]"
CONTROLS = "".join(rf"\x{c:02x}" for c in range(32))
# There is one way to match, so a text that does not costs few tries.
VALUES: dict[type[DataType], str] = {
    StringType: rf'"([^"\\{CONTROLS}]*)"',
    BooleanType: "(true|false)",
    # So many digits always fit the type; more go the long way, which judges them.
    IntegerType: f"(-?[123456789]{DIGIT}{{0,8}}|0)",
    LongType: f"(-?[123456789]{DIGIT}{{0,17}}|0)",
    # A lone -0 is an integer to a JSON parser, and loses its sign there.
    DoubleType: rf"((?:-?[123456789]{DIGIT}{{0,17}}|0|-0(?=\.))(?:\.{DIGIT}{{1,17}})?(?:[eE][+-]?{DIGIT}{{1,3}})?)",
}
FIELD_NAME = re.compile("[ !#-\\[\\]-~]+")
SPACE = r"[ \t\r\n]*"
# What encoders write between fields and behind names by default.
SEPARATORS = ((",", ":"), (", ", ": "))


def layouts(declared: StructType) -> list[tuple[str, str]]:
    """Regular expressions of the texts that need no parser, the cheapest first, each with the replacement that leaves
    the values, in the declared order, each behind a quote, which none of them holds.

    Empty if the schema has fields they cannot hold.
    """
    if not declared.fields or not all(type(f.dataType) in VALUES and FIELD_NAME.fullmatch(f.name) for f in declared):
        return []
    count = len(declared.fields)
    fields = [(f'{_quoted(f.name)}"', VALUES[type(f.dataType)]) for f in declared.fields]
    found = []
    for comma, colon in SEPARATORS:
        inside = comma.join(f'"{name}{colon}{value}' for name, value in fields)
        found.append((rf"\A\{{{inside}\}}\z", _groups(range(1, count + 1))))
    # In any order: so many fields, each with an empty group that has matched if the field is there, and all of those:
    # then none is there twice.
    any_field = "|".join(f"{name}{SPACE}:{SPACE}{value}()" for name, value in fields)
    all_there = "".join(rf"\{2 * i}" for i in range(1, count + 1))
    one = rf'{SPACE}"(?:{any_field}){SPACE}(?:,(?!{SPACE}\}})|(?=\}}))'
    any_layout = rf"\A{SPACE}\{{(?:{one}){{{count}}}\}}{SPACE}\z{all_there}"
    return [*found, (any_layout, _groups(range(1, 2 * count, 2)))]


def _groups(numbers: Iterable[int]) -> str:
    return "".join(f'"${n}' for n in numbers)


def cut(rows: DataFrame, text: str, declared: StructType, prefix: str, where: Column | None = None) -> DataFrame:
    """Rows with `<prefix>_usual BOOLEAN` and, where that is true, the fields of a text as `<prefix><field>`, else NULL.

    where: the rows whose text is read at all.
    """
    usual, inner, parts = f"{prefix}_usual", f"{prefix}_inner", f"{prefix}_parts"
    known = layouts(declared) if settings().parsing == "shapes" else []
    if not known:
        nothing = {prefix + f.name: F.lit(None).cast(f.dataType) for f in declared.fields}
        return rows.withColumns({usual: F.lit(False), **nothing})
    # What begins with a quote and did not before has matched. To compare the two whole would not do: bytes that are no
    # UTF-8 come back as others. Each step is a projection of its own, so that what fields share is computed once.
    quote, shown = F.lit('"'), F.col(text)
    untouched, left = F.lit(True) if where is None else where, F.lit(None).cast("string")
    for shape, values in known:
        rows = rows.withColumn(inner, F.when(untouched, F.regexp_replace(text, shape, values)).otherwise(left))
        untouched, left = ~F.startswith(F.col(inner), quote), F.col(inner)
    rows = rows.withColumn(usual, F.coalesce(F.startswith(left, quote) & ~F.startswith(shown, quote), F.lit(False)))
    rows = rows.withColumn(parts, F.when(F.col(usual), F.split(left, '"')))
    fields = {prefix + f.name: F.col(parts)[i].cast(f.dataType) for i, f in enumerate(declared.fields, 1)}
    return rows.withColumns(fields).drop(inner, parts)


def parsed(rows: DataFrame, text: str, declared: StructType, beside: Sequence[str] = ()) -> DataFrame:
    """Rows with the fields of a JSON text, and `_corrupt STRING`: the text where it is no object or a field has not
    its type, else NULL.

    text: the column, which is dropped. beside: columns that are kept where the text needed a parser, else made NULL.
    """
    fast, rest, slow = "_fast_", "_rest", "_slow"
    rows = cut(rows, text, declared, fast)
    odd = ~F.col(f"{fast}_usual")
    rows = rows.withColumns({rest: F.when(odd, F.col(text)), **{name: F.when(odd, F.col(name)) for name in beside}})
    # from_json breaks Spark's compiled stage: what lies before it is copied, so let that be little.
    rows = rows.withColumn(slow, from_json(F.col(rest), declared))
    fields = {f.name: F.coalesce(F.col(fast + f.name), F.col(slow)[f.name]) for f in declared.fields}
    corrupt = F.when(F.col(rest).isNotNull(), F.col(slow)[CORRUPT])
    dropped = [text, rest, slow, f"{fast}_usual", *(fast + f.name for f in declared.fields)]
    return rows.withColumns({**fields, CORRUPT: corrupt}).drop(*dropped)


def from_json(text: Column, declared: StructType) -> Column:
    """A JSON object's fields, and `_corrupt STRING`, which is NULL if all that is there has its declared type.

    Spark's parser takes NOT NULL at its word, so all fields are nullable here: the caller judges what is missing.
    """
    nullable = (StructField(f.name, f.dataType) for f in declared.fields)
    schema = StructType([*nullable, StructField(CORRUPT, StringType())])
    return F.from_json(text, schema, {"columnNameOfCorruptRecord": CORRUPT})


def _quoted(name: str) -> str:
    """A name in a Java regular expression."""
    return re.sub(r"([^A-Za-z0-9_ ])", r"\\\1", name)
