"""Times of PostgreSQL that Python lacks: `infinity`, years before Christ or beyond 9999, `24:00:00`.

One such value must not stop a capture, so it is read as the text that the database has for it.
"""

from __future__ import annotations

from typing import Any

from psycopg import Connection, DataError, adapters
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

TYPES = ("date", "time", "timestamp", "timestamptz")


class WideDatetimeLoader(Loader):
    """A value as psycopg has it, or as text if it has none."""

    name = ""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        kind = adapters.get_loader(adapters.types[self.name].oid, Format.TEXT)
        assert kind is not None
        self._plain = kind(oid, context)

    def load(self, data: Buffer) -> Any:
        try:
            return self._plain.load(data)
        except DataError:
            return bytes(data).decode()


def register(connection: Connection[Any]) -> None:
    for name in TYPES:
        connection.adapters.register_loader(
            name, type(f"WideDatetimeLoader{name}", (WideDatetimeLoader,), {"name": name})
        )
