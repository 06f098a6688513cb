"""JSON objects in the layout that encoders write by default, read without a JSON parser.

Parsing is most of a hot job's time. A text that matches the layout (the declared fields in the declared order, plain
ASCII without escapes, at most one space behind `:` and `,`) says the same whichever way it is read, so its fields are
cut out of it; every other text goes through `from_json`. Which way a record takes changes its speed and nothing else.
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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CORRUPT = "_corrupt"

# Quantifiers are possessive: there is one way to match, and a text that does not must not cost many tries.
VALUES: dict[type[DataType], str] = {
    StringType: r'"[ !#-\[\]-~]*+"',
    BooleanType: "(?:true|false)",
    # So many digits always fit the type; more go the long way, which judges them.
    IntegerType: "-?+(?:0|[1-9][0-9]{0,8}+)",
    LongType: "-?+(?:0|[1-9][0-9]{0,17}+)",
    # A lone -0 is an integer to a JSON parser, and loses its sign there.
    DoubleType: r"(?!-0(?!\.))-?+(?:0|[1-9][0-9]{0,17}+)(?:\.[0-9]{1,17}+)?+(?:[eE][+-]?+[0-9]{1,3}+)?+",
}
FIELD_NAME = re.compile("[ !#-\\[\\]-~]+")
AROUND_A_NUMBER = ":, }"


def guard(declared: StructType) -> str | None:
    """A regular expression that matches only texts in the layout; None if the schema has fields it cannot hold."""
    if not declared.fields or not all(type(f.dataType) in VALUES and FIELD_NAME.fullmatch(f.name) for f in declared):
        return None
    fields = ", ?+".join(f'"{_quoted(f.name)}": ?+{VALUES[type(f.dataType)]}' for f in declared.fields)
    return rf"\A\{{{fields}\}}\z"


def parsed(rows: DataFrame, text: str, declared: StructType, prefix: str, where: Column | None = None) -> DataFrame:
    """Rows with the fields of a JSON text as columns `<prefix><field>`, and `<prefix>_corrupt STRING`.

    text: the column. `_corrupt` is the text where it is no object or a field has not its type, else NULL. where: the
    rows whose text is read at all; the others have NULL everywhere.
    """
    here = F.lit(True) if where is None else where
    shape = guard(declared)
    guarded, parts, slow = f"{prefix}_guarded", f"{prefix}_parts", f"{prefix}_slow"
    # Each step is a projection of its own, so that what several fields share is computed once.
    rows = rows.withColumn(
        guarded, F.coalesce(here & F.col(text).rlike(shape), F.lit(False)) if shape else F.lit(False)
    )
    if shape:
        rows = rows.withColumn(parts, F.when(F.col(guarded), F.split(text, '"')))
    rows = rows.withColumn(slow, F.when(here & ~F.col(guarded), from_json(F.col(text), declared)))
    fields: dict[str, Column] = {}
    at = 1
    for field in declared.fields:
        long_way = F.col(slow)[field.name]
        if shape is None:
            fields[prefix + field.name] = long_way
        elif isinstance(field.dataType, StringType):
            fields[prefix + field.name] = F.when(F.col(guarded), F.col(parts)[at + 2]).otherwise(long_way)
            at += 4
        else:
            number = F.translate(F.col(parts)[at + 1], AROUND_A_NUMBER, "").cast(field.dataType)
            fields[prefix + field.name] = F.when(F.col(guarded), number).otherwise(long_way)
            at += 2
    fields[prefix + CORRUPT] = F.col(slow)[CORRUPT]
    return rows.withColumns(fields).drop(guarded, parts, slow)


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
