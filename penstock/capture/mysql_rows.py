"""Rows of the MySQL protocol, taken out of PyMySQL's packets: PyMySQL itself calls three methods for each value.

A row is its columns' values one after the other as text, each behind its length:
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset_row.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Lengths from here on are of two, three or eight bytes of their own; this one says NULL.
NULL = 251
WIDTHS = {252: 2, 253: 3, 254: 8}
# What ends the rows begins as a length of eight bytes does, and is shorter than one.
END, SHORT = 254, 9


def rows_of(cursor: Any) -> Iterator[tuple[tuple[Any, ...], int]]:
    """The rows of a query that an SSCursor has just executed, and the bytes of each as it was sent.

    The values are what PyMySQL gives.
    """
    result = cursor._result
    read, width = result.connection._read_packet, WIDTHS.__getitem__
    # Python reads an integer from bytes too.
    forms = [(None if form is int else encoding, form) for encoding, form in result.converters]
    while True:
        packet = read()
        data = packet.get_all_data()
        if data[0] == END and len(data) < SHORT:
            # It says whether other results follow; as PyMySQL does where its rows end.
            result._check_packet_is_eof(packet)
            result.unbuffered_active, result.connection, result.rows = False, None, None
            return
        at, row = 0, list[Any]()
        for encoding, form in forms:
            length = data[at]
            at += 1
            if length >= NULL:
                if length == NULL:
                    row.append(None)
                    continue
                behind = at + width(length)
                length, at = int.from_bytes(data[at:behind], "little"), behind
            end = at + length
            value = data[at:end]
            at = end
            if encoding is not None:
                value = value.decode(encoding)
            row.append(value if form is None else form(value))
        yield tuple(row), len(data)
