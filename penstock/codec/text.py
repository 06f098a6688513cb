"""Bytes as text, in columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

# Rows of a chunk that is decoded value by value if it has invalid UTF-8.
CHUNK_ROWS = 64


def as_text(values: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Returns values as text; NULL where they are not UTF-8.

    Columns are halved until the chunks with invalid bytes are small, so few values pass through Python.
    """
    chunks = [text_chunk for chunk in values.chunks for text_chunk in _text_chunks(chunk)]
    return pa.chunked_array(chunks, pa.string())


def _text_chunks(values: pa.Array[Any]) -> list[pa.Array[Any]]:
    try:
        return [values.cast(pa.string())]
    except pa.ArrowInvalid:
        if len(values) <= CHUNK_ROWS:
            return [pa.array([_decode_utf8(value) for value in values.to_pylist()], pa.string())]
        half = len(values) // 2
        return [*_text_chunks(values[:half]), *_text_chunks(values[half:])]


def _decode_utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
