"""Decodes text of PostgreSQL databases in other encodings than UTF-8.

The server would refuse a whole page for one byte that is invalid in the encoding of its database. So it sends the bytes
without conversion, and each text is decoded here. This holds for single-byte encodings, which Python decodes like the
server; others are left to the server.
"""

from __future__ import annotations

from typing import Any

from penstock.capture.output.encode import Unreadable

LATIN = {f"LATIN{n}" for n in range(1, 11)} | {f"ISO_8859_{n}" for n in range(5, 9)}
WINDOWS = {"WIN866", "WIN874", *(f"WIN{n}" for n in range(1250, 1259))}
# SQL_ASCII means that the encoding is unknown.
DECODED_HERE = {"SQL_ASCII", "KOI8R", "KOI8U", *LATIN, *WINDOWS}
# Types that the driver reads as text; 0 stands for all unknown types.
TEXTS = ("text", "varchar", "bpchar", "name", "xml", '"char"', 0)


def register(connection: Any, *as_text: str) -> None:
    """Decode text of a connection here if the encoding of its database allows it; `as_text` are further types."""
    from psycopg._encodings import pg2pyenc
    from psycopg.adapt import Loader

    server = connection.info.parameter_status("server_encoding")
    if server not in DECODED_HERE:
        return
    connection.execute(f"SET client_encoding = {server}")
    encoding = "utf-8" if server == "SQL_ASCII" else pg2pyenc(server.encode())

    class Text(Loader):
        def load(self, data: Any) -> str | Unreadable:
            read = bytes(data)
            try:
                return read.decode(encoding)
            except UnicodeDecodeError:
                return Unreadable(read)

    for name in (*TEXTS, *as_text):
        connection.adapters.register_loader(name, Text)
