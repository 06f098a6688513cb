"""The Iceberg catalog of archives: the control database by default, or a REST catalog by its URL; and others by name.

The tables of the first are those of pyiceberg's SQL catalog, tried with 0.12.0: other programs open it with that, by
the URL of the control database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests import RequestException, Response
from requests.adapters import HTTPAdapter
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock.archive import file_io
from penstock.control import connect
from penstock.errors import SinkError, Wait
from penstock.object_store.endpoint import AWS
from penstock.settings import settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

CATALOG = "penstock"
RETRY_AFTER, REQUEST_TIMEOUT = 2.0, 20.0
# Of a SQL catalog: pyiceberg asks these of every table.
IO = {"py-io-impl": file_io.NAME}
BUSY = (ServerError, ServiceUnavailableError, TooManyRequestsError, CommitStateUnknownException)
REFUSED = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError)


class ControlCatalog(SqlCatalog):
    """The SQL catalog over an engine that is there, with its time limits and certificates."""

    def __init__(self, engine: Engine, **properties: str) -> None:
        MetastoreCatalog.__init__(self, CATALOG, **properties)
        self.engine = engine
        self._init_catalog()


class TimedAdapter(HTTPAdapter):
    """Requests with a time limit, which pyiceberg's have not."""

    def send(self, *args: Any, **options: Any) -> Response:
        options["timeout"] = options.get("timeout") or REQUEST_TIMEOUT
        return super().send(*args, **options)


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
            return _timed(RestCatalog(CATALOG, uri=url, **{**json.loads(options or "{}"), **IO}))
        return ControlCatalog(connect(control_url).engine, **IO)


def open_named(name: str) -> Catalog:
    """A catalog of pyiceberg's own configuration.

    Raises:
        Wait: It does not answer.
        SinkError: It is not configured, or refuses.
    """
    with errors(f"catalog {name}", name):
        try:
            return _timed(load_catalog(name))
        except (ValueError, NotInstalledError) as e:
            raise SinkError(
                f"there is no Iceberg catalog {name} that can be opened",
                # It may have the URL with a password.
                got=re.sub(r"//[^@/]*@", "//...@", str(e))[:300],
                hint=_config(name),
            ) from e


def _timed(tables: Catalog) -> Catalog:
    if isinstance(tables, RestCatalog):
        for scheme in ("http://", "https://"):
            tables._session.mount(scheme, TimedAdapter())
    return tables


def _config(name: str) -> str:
    return f"configure it for pyiceberg: in .pyiceberg.yaml, or by PYICEBERG_CATALOG__{name.upper()}__URI and others"


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

    def refused(e: Exception, hint: str) -> SinkError:
        return SinkError(f"the Iceberg catalog refuses {what}", got=_text(e), hint=hint)

    try:
        yield
    except (RequestException, PoolTimeout, *BUSY) as e:
        raise Wait(f"the Iceberg catalog does not answer for {what}", got=_text(e), seconds=RETRY_AFTER) from e
    except REFUSED as e:
        raise refused(e, f"check the token or credential in {options}, and its rights") from e
    except (OperationalError, InterfaceError, IntegrityError) as e:
        # A database that restarts, or is full of connections; and two that made a row at once.
        raise Wait(f"the Iceberg catalog does not answer for {what}", got=_text(e), seconds=RETRY_AFTER) from e
    except SQLAlchemyError as e:
        raise refused(e, "see its message") from e
    except NoSuchTableError as e:
        raise SinkError(
            f"there is no table of {what} in the catalog",
            got=_text(e),
            hint="check PENSTOCK_ICEBERG_CATALOG; a table is made when its archive runs first",
        ) from e
    except RESTError as e:
        raise refused(e, "see its message") from e


def _text(e: Exception) -> str:
    origin: Any = getattr(e, "orig", None)
    return f"{type(e).__name__}: {origin or e}"[:300]
