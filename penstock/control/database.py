"""The control database behind one URL: transactions, its clock, and what all its tables share."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Connection,
    Integer,
    RowMapping,
    Table,
    insert,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.types import TypeEngine

from penstock.control import tables as s
from penstock.errors import ControlError, SettingError
from penstock.settings import settings
from penstock.settings.database_engine import create_engine

T = TypeVar("T")

URL_SETTING = "PENSTOCK_CONTROL_URL"
# MySQL's CR_CONN_HOST_ERROR.
CONNECTION_REFUSED = 2003

# A process that is paused within a transaction holds its locks, e.g. on the row of a lease. MariaDB ends such a
# transaction before those who wait for the locks time out; for other servers the setting is a comment.
END_IDLE_TRANSACTIONS = "SET @penstock = 1 /*M!100301 , SESSION idle_transaction_timeout = 4 */"


class ControlDatabase:
    """The control database behind one URL.

    Every method is one short transaction and raises ControlError if the database does not answer. Then the state of a
    driver is unknown, which must not be taken for dead.

    Args:
        url: SQLAlchemy URL.
        ca: PEM file of a CA. With it the connection uses TLS, and certificate and host name of the server are verified.

    Attributes:
        display_url: The URL without password and query, which may be secret too.
    """

    def __init__(self, url: str, ca: str = "") -> None:
        address = _address(url)
        options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 2, "max_overflow": 4, "pool_recycle": 1800}
        if address.get_backend_name() in ("mysql", "mariadb"):
            # A database that hangs must not block the thread that renews leases.
            options["connect_args"] = {
                "connect_timeout": 3, "read_timeout": 5, "write_timeout": 5, "init_command": END_IDLE_TRANSACTIONS,
            }  # fmt: skip
            options["isolation_level"] = "READ COMMITTED"
            if ca:
                options["connect_args"] |= {"ssl_ca": ca, "ssl_verify_cert": True, "ssl_verify_identity": True}
        if address.get_backend_name() == "postgresql" and ca:
            options["connect_args"] = {"sslmode": "verify-full", "sslrootcert": ca}
        if address.get_backend_name() == "sqlite":
            # A connection costs little, and a process need not close what is not kept.
            options = {"connect_args": {"timeout": 10}, "poolclass": NullPool}
        self.display_url = address.set(query={}).render_as_string(hide_password=True)
        self._ca = ca
        self._thread = threading.local()
        self.engine = create_engine(address, **options)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction, or that of the thread's `read_together`.

        Raises:
            ControlError: The database refused or did not answer.
        """
        together: Connection | None = getattr(self._thread, "connection", None)
        with self._translated_errors(), nullcontext(together) if together else self.engine.begin() as c:
            yield c

    @contextmanager
    def read_together(self) -> Iterator[None]:
        """Let the reads of this thread within a block share one transaction; each sees what is committed by then.

        A transaction of its own costs a read three more round trips.

        Raises:
            ControlError: The database refused or did not answer.
        """
        with self.begin() as c:
            self._thread.connection = c
            try:
                yield
            finally:
                self._thread.connection = None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as e:
            cause = getattr(e, "orig", None) or e
            hint = "check that it runs with `penstock doctor`; `penstock migrate` upgrades its tables"
            if CONNECTION_REFUSED in getattr(cause, "args", ()) and not settings().control_url.get_secret_value():
                hint = "start the platform with `penstock up`; if it runs, `penstock doctor` shows what is wrong"
            if re.search(r"\(using password|authentication failed", str(cause)):
                conn_id = settings().connection_ids.get("control_url")
                hint = "check the login and password of " + (f"the connection {conn_id}" if conn_id else URL_SETTING)
            if self._ca and re.search("certificate|SSL", str(cause)):
                hint = "set PENSTOCK_CONTROL_CA to the CA of its certificate, and use a host of that in the URL"
            raise ControlError(
                "a statement of the control database failed",
                got=f"{type(cause).__name__}: {cause} at {self.display_url}",
                hint=hint,
            ) from e

    def migrate(self) -> None:
        """Create or upgrade the tables: see `penstock.control.schema.upgrade`."""
        # Importing Alembic is slow, and most processes never need it.
        from penstock.control import schema

        with self._translated_errors():
            schema.upgrade(self.engine)

    def schema_revision(self) -> tuple[str | None, str]:
        """The revision of the tables, None before the first migration, and the revision that this code needs."""
        from penstock.control import schema

        with self.begin() as c:
            return schema.current(c), schema.head()

    def now(self) -> int:
        """The database's clock, epoch ms."""
        with self.begin() as c:
            return int(c.execute(select(s.now_ms())).scalar_one())


def _address(url: str) -> URL:
    """Parse a URL; SettingError, without the URL and its password, if it is invalid."""
    try:
        address = make_url(url)
        address.get_dialect()
    except (ArgumentError, ValueError, ImportError) as e:
        got, valid = type(e).__name__, False
    else:
        # In `user:a@b/c@host` the password ends at the first @, so host and database contain parts of it.
        got, valid = "an @ in the host or the database", "@" not in f"{address.host}{address.database}"
    if not valid:
        raise SettingError(
            f"{URL_SETTING} is no URL of a database",
            got=got,
            hint="write it as mysql+pymysql://user:password@host:3306/database, in the password %40 for @, %2F for /",
        ) from None
    return address


def insert_if_new(c: Connection, table: Table, **values: Any) -> int:
    """Insert a row unless its key exists; returns the number of inserted rows."""
    try:
        with c.begin_nested():
            return int(c.execute(insert(table).values(**values)).rowcount)
    except IntegrityError:
        key = [column == values[column.name] for column in table.primary_key]
        if c.execute(select(*table.primary_key).where(*key)).first() is None:
            raise
        return 0


def upsert(c: Connection, table: Table, name: str, **values: Any) -> None:
    """Update or insert a named row, with values as `bounded` returns them."""
    set_ = update(table).where(table.c.name == name).values(**bounded(table, values))
    if c.execute(set_).rowcount or insert_if_new(c, table, name=name, **bounded(table, values)):
        return
    # Another process has inserted it in the meantime.
    c.execute(set_)


def bounded(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fit values to the types of their columns: texts are cut, numbers clamped, NaN and infinity become NULL or 0."""
    return {name: _bounded(table.c[name].type, table.c[name].nullable, value) for name, value in values.items()}


def _bounded(kind: TypeEngine[Any], nullable: bool | None, value: Any) -> Any:
    if isinstance(kind, JSON):
        return _json(value)
    if isinstance(value, str):
        return s.bounded_text(value, getattr(kind, "length", None))
    if isinstance(value, float) and not math.isfinite(value):
        return None if nullable else 0
    if isinstance(kind, Integer) and isinstance(value, int | float):
        limit = 2**63 - 1 if isinstance(kind, BigInteger) else 2**31 - 1
        return max(-limit, min(limit, int(value)))
    return value


def _json(value: Any) -> Any:
    if isinstance(value, str):
        return s.bounded_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {_json(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value


def first_row(kind: type[T], result: Iterable[RowMapping]) -> T | None:
    """The first row of a result as a dataclass; None if the result is empty."""
    return next(iter(rows(kind, result)), None)


def rows(kind: type[T], result: Iterable[RowMapping]) -> list[T]:
    """The rows of a result as a dataclass, whose fields have the names of columns."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    return [kind(*[row[name] for name in names]) for row in result]
