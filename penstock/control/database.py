"""The control database behind one URL: transactions, its clock, and what all its tables share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
    create_engine,
    insert,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.types import TypeEngine

from penstock.control import tables as s
from penstock.errors import ControlError, SettingError
from penstock.settings import settings

T = TypeVar("T")

# MySQL's code for a server that nobody can connect to.
REFUSED = 2003

# A process that is paused within a transaction holds its locks, the lease's row among them: MariaDB gives it up before
# those who wait for them do. Another server, which has no such setting, takes the rest for a comment.
ENDS_IDLE = "SET @penstock = 1 /*M!100301 , SESSION idle_transaction_timeout = 4 */"


class ControlDatabase:
    """The control database behind one URL.

    Every method is one short transaction and raises ControlError when the database is away: a caller that cannot
    reach it knows nothing, and must not take unknown for dead.

    Args:
        url: SQLAlchemy URL.
        ca: PEM file; the connection then uses TLS, and the server's certificate must be of this CA and hold the host's
            name.

    Attributes:
        display_url: The URL without its password and query, which may be secret too.
    """

    def __init__(self, url: str, ca: str = "") -> None:
        address = _address(url)
        options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 2, "max_overflow": 4, "pool_recycle": 1800}
        if address.get_backend_name() in ("mysql", "mariadb"):
            # A hung database must not hang the driver's lease keeper with it.
            options["connect_args"] = {
                "connect_timeout": 3, "read_timeout": 5, "write_timeout": 5, "init_command": ENDS_IDLE,
            }  # fmt: skip
            options["isolation_level"] = "READ COMMITTED"
            if ca:
                options["connect_args"] |= {"ssl_ca": ca, "ssl_verify_cert": True, "ssl_verify_identity": True}
        if address.get_backend_name() == "postgresql" and ca:
            options["connect_args"] = {"sslmode": "verify-full", "sslrootcert": ca}
        if address.get_backend_name() == "sqlite":
            options = {"connect_args": {"timeout": 10}}
        self.display_url = address.set(query={}).render_as_string(hide_password=True)
        self._ca = ca
        self.engine = create_engine(address, **options)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction.

        Raises:
            ControlError: The database refused or did not answer.
        """
        with self._translated_errors(), self.engine.begin() as c:
            yield c

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as e:
            cause = getattr(e, "orig", None) or e
            hint = "see that it runs (`penstock doctor`); `penstock migrate` brings its tables up to date"
            if REFUSED in getattr(cause, "args", ()) and not settings().control_url.get_secret_value():
                hint = "`make up` starts the platform; if it is up, `penstock doctor` says what is wrong"
            if self._ca and re.search("certificate|SSL", str(cause)):
                hint = "let PENSTOCK_CONTROL_CA be its certificate's CA, and PENSTOCK_CONTROL_URL hold a name of it"
            raise ControlError(
                "the control database did not do what was asked",
                got=f"{type(cause).__name__}: {cause} at {self.display_url}",
                hint=hint,
            ) from e

    def migrate(self) -> None:
        """Create the tables, or bring them to the schema of this code: see `penstock.control.schema.upgrade`."""
        # Only those who migrate pay for the import of Alembic.
        from penstock.control import schema

        with self._translated_errors():
            schema.upgrade(self.engine)

    def schema_revision(self) -> tuple[str | None, str]:
        """The revision of the database's tables, None before the first migration, and the one that this code needs."""
        from penstock.control import schema

        with self.begin() as c:
            return schema.current(c), schema.head()

    def now(self) -> int:
        """The database's clock, epoch ms."""
        with self.begin() as c:
            return int(c.execute(select(s.now_ms())).scalar_one())


def _address(url: str) -> URL:
    """SettingError, which keeps what may be a password to itself, if it is no URL of a database."""
    try:
        found = make_url(url)
        found.get_dialect()
    except (ArgumentError, ValueError, ImportError) as e:
        got, known = type(e).__name__, False
    else:
        # Of `user:a@b@host` the password ends at the first @, and the rest would be told as the host.
        got, known = "an @ in the host", "@" not in (found.host or "")
    if not known:
        raise SettingError(
            "PENSTOCK_CONTROL_URL is no URL of a database",
            got=got,
            hint="write it as mysql+pymysql://user:password@host:3306/database, in the password %40 for @",
        ) from None
    return found


def insert_if_new(c: Connection, table: Table, **values: Any) -> int:
    """Insert a row unless its key is there; 1 if it was inserted."""
    try:
        with c.begin_nested():
            return int(c.execute(insert(table).values(**values)).rowcount)
    except IntegrityError:
        key = [column == values[column.name] for column in table.primary_key]
        if c.execute(select(*table.primary_key).where(*key)).first() is None:
            raise
        return 0


def upsert(c: Connection, table: Table, name: str, **values: Any) -> None:
    """Set a named row's columns, bounded to what they take; a row that is not there is inserted."""
    set_ = update(table).where(table.c.name == name).values(**bounded(table, values))
    if c.execute(set_).rowcount or insert_if_new(c, table, name=name, **bounded(table, values)):
        return
    # Another has inserted it in between.
    c.execute(set_)


def bounded(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that the table's columns take: texts are cut, numbers clamped, and what is not finite is left out."""
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
        return {_json(key): _json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    return value


def row_of(kind: type[T], row: RowMapping) -> T:
    return rows(kind, [row])[0]


def one(kind: type[T], row: RowMapping | None) -> T | None:
    return None if row is None else row_of(kind, row)


def rows(kind: type[T], found: Iterable[RowMapping]) -> list[T]:
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    return [kind(*[row[name] for name in names]) for row in found]
