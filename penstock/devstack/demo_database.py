"""The demo database of the embedded MariaDB, for captures to follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlglot
from sqlalchemy import Connection, MetaData, Table, create_engine, inspect, select, text
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

from penstock.errors import PenstockError


class DemoError(PenstockError):
    """The demo database refused a change."""


class DemoDatabase:
    """The demo database. url: its SQLAlchemy URL; folder: a SQL file for each table, which creates and fills it."""

    def __init__(self, url: str, folder: Path) -> None:
        self._engine = create_engine(url)
        self._folder = folder

    def create(self) -> list[str]:
        """Create missing tables; returns their names. Existing tables stay as they are."""
        created = []
        try:
            existing = set(inspect(self._engine).get_table_names())
            for path in sorted(self._folder.glob("*.sql")):
                if path.stem in existing:
                    continue
                with self._engine.begin() as c:
                    for statement in sqlglot.transpile(path.read_text(), read="mysql", write="mysql"):
                        c.execute(text(statement.replace(":", "\\:")))
                created.append(path.stem)
        except SQLAlchemyError as e:
            raise _refused(e) from e
        return created

    @property
    def tables(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.sql"))

    def rows(self, table: str, limit: int = 50) -> tuple[list[str], list[tuple[Any, ...]]]:
        """(column names, rows) of a table, by primary key."""
        with self._changing(table) as (c, t):
            result = c.execute(select(t).order_by(*t.primary_key.columns).limit(limit))
            return list(result.keys()), [tuple(row) for row in result]

    def add(self, table: str, values: Mapping[str, str]) -> dict[str, Any]:
        """Insert a row; returns its primary key."""
        with self._changing(table) as (c, t):
            key = c.execute(t.insert().values(self._check_columns(t, values))).inserted_primary_key
            return dict(zip(t.primary_key.columns.keys(), key or (), strict=False))

    def edit(self, table: str, key: Mapping[str, str], values: Mapping[str, str]) -> int:
        """Change the rows of a key; returns how many there were."""
        with self._changing(table) as (c, t):
            return c.execute(t.update().where(*self._where(t, key)).values(self._check_columns(t, values))).rowcount

    def remove(self, table: str, key: Mapping[str, str], *, hard: bool) -> int:
        """Mark rows as deleted, or with `hard` delete them for good; returns how many there were."""
        with self._changing(table) as (c, t):
            where = self._where(t, key)
            return c.execute(t.delete().where(*where) if hard else t.update().where(*where).values(deleted=1)).rowcount

    @contextmanager
    def _changing(self, table: str) -> Iterator[tuple[Connection, Table]]:
        try:
            with self._engine.begin() as c:
                yield c, Table(table, MetaData(), autoload_with=c)
        except NoSuchTableError as e:
            hint = f"take one of: {', '.join(self.tables)}"
            raise DemoError("there is no such table in the demo database", got=table, hint=hint) from e
        except SQLAlchemyError as e:
            raise _refused(e) from e

    def _check_columns(self, t: Table, values: Mapping[str, str]) -> dict[str, str]:
        if unknown := sorted(values.keys() - t.columns.keys()):
            hint = f"use some of: {', '.join(t.columns.keys())}"
            raise DemoError(f"table {t.name} has no such column", got=", ".join(unknown), hint=hint)
        return dict(values)

    def _where(self, t: Table, key: Mapping[str, str]) -> list[Any]:
        names = list(t.primary_key.columns.keys())
        if sorted(key) != sorted(names):
            hint = f"give {', '.join(f'{name}=…' for name in names)}"
            raise DemoError(f"this is not the key of table {t.name}", got=", ".join(key) or "nothing", hint=hint)
        return [t.columns[name] == value for name, value in key.items()]


def _refused(e: SQLAlchemyError) -> DemoError:
    cause = getattr(e, "orig", None) or e
    return DemoError("the demo database did not do it", got=cause, hint="see that it runs: `penstock doctor`")
