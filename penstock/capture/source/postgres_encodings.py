"""Text of PostgreSQL's databases in another encoding than UTF-8.

The server itself refuses a whole page for one byte that is no character of its database's encoding. So it is not asked
to convert: bytes are read here, each text by itself. Of the encodings below Python makes of each byte what the server
would; of those with characters of several bytes it does not, so these are left to the server.
"""

from __future__ import annotations

from typing import Any

from penstock.capture.output.encode import Unreadable

LATIN = {f"LATIN{n}" for n in range(1, 11)} | {f"ISO_8859_{n}" for n in range(5, 9)}
WINDOWS = {"WIN866", "WIN874", *(f"WIN{n}" for n in range(1250, 1259))}
# In SQL_ASCII a database says nothing of its bytes.
DECODED_HERE = {"SQL_ASCII", "KOI8R", "KOI8U", *LATIN, *WINDOWS}
# What is text to the driver; without a number, all types that it does not know.
TEXTS = ("text", "varchar", "bpchar", "name", "xml", '"char"', 0)


def register(connection: Any, *as_text: str) -> None:
    """Let text of a connection be read here, if its database is of such an encoding. as_text: other types that are."""
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
