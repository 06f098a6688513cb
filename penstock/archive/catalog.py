"""The Iceberg catalog of archives: the control database by default, or a REST catalog by its URL; and others by name.

The tables of the first are those of pyiceberg's SQL catalog, tried with 0.12.0: other programs open it with that, by
the URL of the control database.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    ResolveError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.exceptions import ValidationError as MetadataError
from requests import HTTPError, RequestException
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema
from sqlalchemy import make_url, update
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock.archive import file_io
from penstock.archive.rest_catalog import TimedRestCatalog
from penstock.control import connect
from penstock.errors import SinkError, Wait
from penstock.object_store.endpoint import AWS
from penstock.settings import settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

CATALOG = "penstock"
RETRY_AFTER = 2.0
# Of a SQL catalog: pyiceberg asks these of every table.
IO = {"py-io-impl": file_io.NAME}
BUSY, LOGIN = frozenset({408, 425, 429}), frozenset({401, 403, 419})
"""Statuses: those of a busy server, or of a proxy before it, beside those from 500 on; and those of a refused login."""
# What the library raises of metadata that are cut off or damaged.
DAMAGED = (
    MetadataError, ResolveError, EOFError, ValueError, LookupError, TypeError, ArithmeticError, AssertionError,
    AttributeError, MemoryError, SystemError, zlib.error,
)  # fmt: skip
DAMAGE_HINT = "see its message; if a file is damaged, restore it"
# Another program was faster: what it did is found by the next try.
FASTER = (TableAlreadyExistsError, NamespaceAlreadyExistsError)

AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, properties: TimedRestCatalog(name, **properties)


class ControlCatalog(SqlCatalog):
    """The SQL catalog over an engine that is there, with its time limits and certificates."""

    def __init__(self, engine: Engine, **properties: str) -> None:
        MetastoreCatalog.__init__(self, CATALOG, **properties)
        self.engine = engine
        self._init_catalog()

    def replace_metadata(self, name: str, known: str, location: str) -> bool:
        """Let a table have other metadata.

        Args:
            name: The table.
            known: Its present metadata file.
            location: The metadata file that it gets.

        Returns:
            Whether it was changed; it is not if a commit was faster.
        """
        namespace, _, table = name.rpartition(".")
        change = update(IcebergTables).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == table,
            IcebergTables.metadata_location == known,
        )
        with self.engine.begin() as connection:
            values = {"metadata_location": location, "previous_metadata_location": known}
            return connection.execute(change.values(values)).rowcount > 0


def open_catalog() -> Catalog:
    """The catalog that the settings name.

    Raises:
        Wait: It does not answer.
        SinkError: It refuses.
    """
    s = settings()
    return _opened(s.iceberg_catalog, s.iceberg_options.get_secret_value(), s.control)


@cache
def _opened(url: str, options: str, control_url: str) -> Catalog:
    with errors(url or "the control database"):
        if url:
            return TimedRestCatalog(CATALOG, uri=url, **{**json.loads(options or "{}"), **IO})
        return ControlCatalog(connect(control_url).engine, **IO)


def open_named(name: str) -> Catalog:
    """A catalog of pyiceberg's own configuration.

    Raises:
        Wait: It does not answer.
        SinkError: It is not configured, or refuses.
    """
    with errors(f"catalog {name}", name):
        try:
            return load_catalog(name)
        except (ValueError, NotInstalledError) as e:
            raise SinkError(
                f"there is no Iceberg catalog {name} that can be opened",
                # It may have the URL with a password.
                got=re.sub(r"//[^@/]*@", "//...@", str(e))[:300],
                hint=_config(name),
            ) from e


def _config(name: str) -> str:
    """Where a catalog is configured. In a variable the library takes _ for -, and all letters for small ones."""
    variable = f"PYICEBERG_CATALOG__{name.replace('-', '_').upper()}__URI"
    places = f"in .pyiceberg.yaml, or by {variable} and others"
    return f"configure it for pyiceberg: {places if re.fullmatch('[a-z0-9-]+', name) else 'in .pyiceberg.yaml'}"


def connection_code(table: str) -> str:
    """Lines of Python that open a table; secrets are left out.

    Raises:
        SinkError: No object store is configured.
    """
    s, endpoint = settings(), file_io.open_bucket("").endpoint
    files = {
        "s3.region": endpoint.region,
        **({"s3.endpoint": endpoint.url} if endpoint.url != AWS else {}),
        **({"s3.access-key-id": endpoint.access_key, "s3.secret-access-key": "..."} if endpoint.access_key else {}),
    }
    if s.iceberg_catalog:
        options = {**dict.fromkeys(json.loads(s.iceberg_options.get_secret_value() or "{}"), "..."), **files}
        kind, uri = "rest.RestCatalog", s.iceberg_catalog
    else:
        options = files
        kind, uri = "sql.SqlCatalog", make_url(s.control).render_as_string(hide_password=True)
    module, _, name = kind.partition(".")
    return (
        f"from pyiceberg.catalog.{module} import {name}\n\n"
        f"catalog = {name}({CATALOG!r}, uri={uri!r}, **{options!r})\n"
        f"rows = catalog.load_table({table!r}).scan(limit=10).to_arrow()\n"
        "print(rows.to_pandas())"
    )


@contextmanager
def errors(what: str, name: str = "") -> Iterator[None]:
    """Raise what the catalog raises within the block as an error of Penstock.

    Args:
        what: Of what, for the message.
        name: Of a catalog of pyiceberg's own configuration; empty for that of the archives.
    """
    options = f"the configuration of catalog {name}" if name else "PENSTOCK_ICEBERG_OPTIONS"
    login = f"check the token or credential in {options}, and its rights"
    address = _config(name) if name else "check PENSTOCK_ICEBERG_CATALOG: http://host:port/path"

    def refused(e: Exception, hint: str) -> SinkError:
        return SinkError(f"the Iceberg catalog refuses {what}", got=_text(e), hint=hint)

    def busy(e: Exception) -> Wait:
        return Wait(f"the Iceberg catalog does not answer for {what}", got=_text(e), seconds=RETRY_AFTER)

    try:
        yield
    except OAuthError as e:
        raise refused(e, login) from e
    except (HTTPError, RESTError) as e:
        status = _status(e)
        if status in BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise busy(e) from e
        raise refused(e, login if status in LOGIN else "see its message") from e
    except (InvalidURL, InvalidSchema, MissingSchema) as e:
        raise refused(e, address) from e
    except (RequestException, PoolTimeout, OperationalError, InterfaceError, IntegrityError) as e:
        # A server that is away, a database that restarts or is full of connections, two that made a row at once.
        raise busy(e) from e
    except SQLAlchemyError as e:
        raise refused(e, "see its message") from e
    except NoSuchTableError as e:
        raise SinkError(
            f"there is no table of {what} in the catalog",
            got=_text(e),
            hint="check PENSTOCK_ICEBERG_CATALOG; a table is made when its archive runs first",
        ) from e
    except FASTER as e:
        raise Wait(f"another program makes {what} at the same time", got=_text(e), seconds=RETRY_AFTER) from e
    except NoSuchNamespaceError as e:
        raise refused(e, "see its message") from e
    except NotImplementedError as e:
        # Of the server, or of its list of what it can; the library raises others of what it cannot itself.
        if not isinstance(e.__cause__, HTTPError) and "Server does not support" not in str(e):
            raise
        raise refused(e, "see its message") from e
    except ValidationError as e:
        raise SinkError(
            f"the Iceberg catalog does not answer as one for {what}",
            got=_text(e),
            hint=f"another server, or a login page, is there: {address}",
        ) from e
    except DAMAGED as e:
        hint = DAMAGE_HINT
        if "equality deletes" in str(e):
            hint = "let an engine that reads them rewrite the table's files, such as by rewrite_data_files"
        raise SinkError(f"{what} cannot be read", got=_text(e), hint=hint) from e


def _status(e: HTTPError | RESTError) -> int:
    """The status of the answer that an error tells of."""
    cause = e if isinstance(e, HTTPError) else e.__cause__
    answer = cause.response if isinstance(cause, HTTPError) else None
    # The library raises some without an answer, when it does not know how a commit ended.
    return HTTPStatus.INTERNAL_SERVER_ERROR if answer is None else answer.status_code


def _text(e: Exception) -> str:
    origin: Any = getattr(e, "orig", None)
    return f"{type(e).__name__}: {origin or e}"[:300]
