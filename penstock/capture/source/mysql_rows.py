"""Rows of the MySQL protocol, taken out of PyMySQL's packets: PyMySQL itself calls three methods for each value.

A row is its columns' values one after the other as text, each behind its length; a packet has the length of what it
holds and its number before it:
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset_row.html
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_basic_packets.html

The only module that uses private names of PyMySQL. Tested with PyMySQL 1.2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pymysql.err import Error

from penstock.capture.output.encode import Unreadable

# Lengths from here on are of two, three or eight bytes of their own; this one says NULL.
NULL = 251
WIDTHS = {252: 2, 253: 3, 254: 8}
# What ends the rows begins as a length of eight bytes does, and is shorter than one. An error begins with the next.
END, SHORT = 254, 9
HEAD = 4

# Of a column: the encoding of its text, and what makes its value of that.
Forms = Sequence[tuple[str | None, Callable[[Any], Any] | None]]
Row = tuple[Any, ...]


def read_rows(cursor: Any) -> Iterator[tuple[Row, int]]:
    """The rows of a query that an SSCursor has just executed, and the bytes of each as it was sent.

    The values are what PyMySQL gives, and `Unreadable` where it cannot read a text.
    """
    result = cursor._result
    connection = result.connection
    # Python reads an integer from bytes too.
    forms = [(None if form is int else encoding, form) for encoding, form in result.converters]
    while True:
        try:
            packet = connection._read_packet()
        except Error:
            # Else the cursor, as it is closed, would read on from a connection that may be gone.
            result.unbuffered_active = False
            raise
        data = packet.get_all_data()
        if data[0] == END and len(data) < SHORT:
            # It says whether other results follow; as PyMySQL does where its rows end.
            result._check_packet_is_eof(packet)
            result.unbuffered_active, result.connection, result.rows = False, None, None
            return
        yield _row(data, 0, forms), len(data)
        yield from _buffered(connection, forms)


def result_fields(cursor: Any) -> list[Any]:
    """The column descriptions of a cursor's result: type, flags and number of the character set."""
    return list(cursor._result.fields)


def _buffered(connection: Any, forms: Forms) -> list[tuple[Row, int]]:
    """The rows whose packets have come already as a whole; any other packet is left to PyMySQL."""
    data, at, rows, number = b"", 0, list[tuple[Row, int]](), connection._next_seq_id
    # What is wrong with the connection, PyMySQL meets and says with its next packet.
    with suppress(OSError):
        data = connection._rfile.peek()
    while len(data) > (start := at + HEAD):
        size = int.from_bytes(data[at : at + 3], "little")
        if start + size > len(data) or data[start] >= END or data[at + 3] != number:
            break
        rows.append((_row(data, start, forms), size))
        at, number = start + size, (number + 1) % 256
    connection._rfile.read(at)
    connection._next_seq_id = number
    return rows


def _row(data: bytes, at: int, forms: Forms) -> Row:
    row = list[Any]()
    for encoding, form in forms:
        length = data[at]
        at += 1
        if length >= NULL:
            if length == NULL:
                row.append(None)
                continue
            end_of_length = at + WIDTHS[length]
            length, at = int.from_bytes(data[at:end_of_length], "little"), end_of_length
        end = at + length
        value: Any = data[at:end]
        at = end
        if encoding is not None:
            try:
                value = value.decode(encoding)
            except UnicodeDecodeError:
                # MariaDB takes one half of a surrogate pair for a character.
                row.append(Unreadable(value))
                continue
        row.append(value if form is None else form(value))
    return tuple(row)
