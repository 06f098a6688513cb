"""Masks applied to frames, in expressions of Spark alone.

Keys are in a table of one row: plans appear in logs, errors and Spark's UI, and show the columns of a table and not its
rows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F, T
from penstock.model.mask import dropped_columns
from penstock.model.spark_hmac import hmac_pads, hmac_sha256
from penstock.model.types import quoted
from penstock.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from penstock.model.mask import Mask

# Nonce of AES-GCM, bytes.
NONCE = 12
NONCE_KEY = b"penstock mask nonce"
# As `penstock.model.output.JSON`: the text of a struct, an array or a map.
JSON = {"ignoreNullFields": "false"}


def masked_rows(rows: DataFrame, masks: Sequence[Mask]) -> DataFrame:
    """Mask the columns of a frame; those that are dropped are left out. Raises as `masked_columns`."""
    if not masks:
        return rows
    masked, dropped = masked_columns(rows, masks), dropped_columns(masks)
    return rows.select(
        *(masked.get(n.lower(), F.col(quoted(n))).alias(n) for n in rows.columns if n.lower() not in dropped)
    )


def masked_columns(rows: DataFrame, masks: Sequence[Mask]) -> dict[str, Column]:
    """Expressions of the masked columns of a frame, by name in lower case.

    A BINARY value becomes BINARY, any other STRING: 64 hexadecimal digits of a hash, base64 of a ciphertext.

    Args:
        rows: The frame.
        masks: The masks; of two with the same column, each masks another field.

    Raises:
        DeclarationError: A column or field does not exist, or cannot be masked alone.
        SettingError: A key does not exist, or is not valid.
    """
    if not masks:
        return {}
    keys = _KeyTable(rows.sparkSession, masks) if any(mask.key for mask in masks) else None
    fields = {field.name.lower(): field for field in rows.schema.fields}
    columns: dict[str, Column] = {}
    for mask in masks:
        field = fields.get(mask.root)
        if field is None:
            raise _wrong(mask, "there is no such column", f"take one of: {', '.join(rows.columns)}")
        column = columns.get(mask.root, F.col(quoted(field.name)))
        names, value, kind = _field_of(mask, column, field.dataType)
        if mask.method == "dropped":
            if names:
                columns[mask.root] = column.dropFields(".".join(map(quoted, names)))
            continue
        assert keys is not None
        masked = keys.masked(mask, value, kind)
        columns[mask.root] = column.withField(".".join(map(quoted, names)), masked) if names else masked
    return columns


def _field_of(mask: Mask, column: Column, kind: DataType) -> tuple[list[str], Column, DataType]:
    """The names of the fields of a mask's path, its value and its type."""
    names: list[str] = []
    for name in mask.path[1:]:
        if not isinstance(kind, T.StructType):
            hint = "mask the whole column, or give the value a column of its own in the SELECT"
            raise _wrong(mask, f"{'.'.join((mask.path[0], *names))} is no struct: {kind.simpleString()}", hint)
        field = next((field for field in kind.fields if field.name.lower() == name.lower()), None)
        if field is None:
            raise _wrong(mask, "there is no such field", f"take one of: {', '.join(kind.names)}")
        if mask.method == "dropped" and len(kind.fields) == 1:
            hint = "drop the struct"
            raise _wrong(mask, "it is the only field of its struct", hint)
        names.append(field.name)
        column, kind = column.getField(field.name), field.dataType
    return names, column, kind


def _wrong(mask: Mask, what: str, hint: str) -> DeclarationError:
    return DeclarationError(f"{mask.location}: the mask of {mask.column}: {what}", got=mask.text, hint=hint)


class _KeyTable:
    """The keys of masks as columns of a table of one row.

    Args:
        spark: The session of the frame.
        masks: The masks.
    """

    def __init__(self, spark: SparkSession, masks: Sequence[Mask]) -> None:
        # Arrow is more than a declaration needs to load.
        import pyarrow as pa

        cells: dict[str, bytes] = {}
        for mask in masks:
            if mask.key:
                encrypts = mask.method == "encrypted"
                key = settings().mask_key(mask.key, encrypts=encrypts)
                if encrypts:
                    cells[f"key of {mask.key}"] = key
                    key = hmac.digest(key, NONCE_KEY, hashlib.sha256)
                cells |= zip(_pad_names(mask), hmac_pads(key), strict=True)
        table = spark.createDataFrame(pa.table({name: [cell] for name, cell in cells.items()}))
        self._cells: Mapping[str, Column] = {name: table.select(quoted(name)).scalar() for name in cells}

    def masked(self, mask: Mask, value: Column, kind: DataType) -> Column:
        """A masked value of a type."""
        inner, outer = (self._cells[name] for name in _pad_names(mask))
        is_binary = isinstance(kind, T.BinaryType)
        message = value if is_binary else _text(value, kind).cast("binary")
        digest = hmac_sha256(inner, outer, message)
        if mask.method == "hashed":
            return F.unhex(digest) if is_binary else digest
        # The nonce is a function of the value: equal nonces are of equal values, and rows that are made again are the
        # same.
        nonce, key = F.substring(F.unhex(digest), 1, NONCE), self._cells[f"key of {mask.key}"]
        cipher = F.aes_encrypt(message, key, F.lit("GCM"), F.lit("DEFAULT"), nonce)
        # Spark breaks base64 into lines.
        return cipher if is_binary else F.translate(F.base64(cipher), "\r\n", "")


def _pad_names(mask: Mask) -> tuple[str, str]:
    return f"{mask.method} inner pad of {mask.key}", f"{mask.method} outer pad of {mask.key}"


def _text(value: Column, kind: DataType) -> Column:
    nested: tuple[Callable[..., DataType], ...] = (T.StructType, T.ArrayType, T.MapType, T.VariantType)
    return F.to_json(value, JSON) if isinstance(kind, nested) else value.cast("string")  # type: ignore[arg-type]
