"""Bytes as text, in columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

# A piece of at most so many values is decoded one by one if it holds bytes that are not UTF-8.
PIECE = 64


def as_text(values: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Returns values as text; NULL where they are not UTF-8.

    Columns are halved until the pieces with invalid bytes are small, so few values pass through Python.
    """
    pieces = [piece for chunk in values.chunks for piece in _text_pieces(chunk)]
    return pa.chunked_array(pieces, pa.string())


def _text_pieces(values: pa.Array[Any]) -> list[pa.Array[Any]]:
    try:
        return [values.cast(pa.string())]
    except pa.ArrowInvalid:
        if len(values) <= PIECE:
            return [pa.array([_decode_utf8(value) for value in values.to_pylist()], pa.string())]
        half = len(values) // 2
        return [*_text_pieces(values[:half]), *_text_pieces(values[half:])]


def _decode_utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
