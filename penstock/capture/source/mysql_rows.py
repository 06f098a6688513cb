"""Parses rows of the MySQL protocol from PyMySQL's packets; PyMySQL itself calls three methods for each value.

A row is the values of its columns as text, each after its length. A packet starts with its length and number:
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

# Length bytes from here on have a special meaning: NULL, or a length of two, three or eight bytes.
NULL = 251
WIDTHS = {252: 2, 253: 3, 254: 8}
# The packet after the rows starts like a length of eight bytes, and is shorter. An error starts with the next byte.
END, SHORT = 254, 9
HEAD = 4

# The encoding and the converter of each column.
Forms = Sequence[tuple[str | None, Callable[[Any], Any] | None]]
Row = tuple[Any, ...]


def read_rows(cursor: Any) -> Iterator[tuple[Row, int]]:
    """The rows of a query that an SSCursor has just executed, and their sizes as sent.

    Values are as PyMySQL returns them, and `Unreadable` for invalid text.
    """
    result = cursor._result
    connection = result.connection
    # Python reads an integer from bytes too.
    forms = [(None if form is int else encoding, form) for encoding, form in result.converters]
    while True:
        try:
            packet = connection._read_packet()
        except Error:
            # Otherwise closing the cursor would read from a connection that may be broken.
            result.unbuffered_active = False
            raise
        data = packet.get_all_data()
        if data[0] == END and len(data) < SHORT:
            # As PyMySQL at the end of the rows; the packet says whether more results follow.
            result._check_packet_is_eof(packet)
            result.unbuffered_active, result.connection, result.rows = False, None, None
            return
        yield _row(data, 0, forms), len(data)
        yield from _buffered(connection, forms)


def result_fields(cursor: Any) -> list[Any]:
    """The column descriptions of a cursor's result: type, flags and number of the character set."""
    return list(cursor._result.fields)


def _buffered(connection: Any, forms: Forms) -> list[tuple[Row, int]]:
    """The rows whose packets are completely buffered; other packets are left to PyMySQL."""
    data, at, rows, number = b"", 0, list[tuple[Row, int]](), connection._next_seq_id
    # PyMySQL reports an error of the connection with the next packet.
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
                # MariaDB accepts lone surrogates.
                row.append(Unreadable(value))
                continue
        row.append(value if form is None else form(value))
    return tuple(row)
