"""Reads times of PostgreSQL that Python cannot have (`infinity`, years before 1 or after 9999, `24:00:00`) as text."""

from __future__ import annotations

from typing import Any

from psycopg import Connection, DataError, adapters
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

TYPES = ("date", "time", "timestamp", "timestamptz")


class WideDatetimeLoader(Loader):
    """Loads a value as psycopg does, or as text if it is out of range."""

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
