"""Tries of what a Connection describes: each connects within seconds, and says what answered.

They raise PenstockError, without the password, if it does not serve. What a project's extras install is imported when
it is needed.
"""

from __future__ import annotations

import re
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ControlError, SettingError, SinkError, Wait, optional_packages
from penstock.settings import connection_types, settings
from penstock.settings.masks import AES_BYTES, decode_key

if TYPE_CHECKING:
    import httpx

    from penstock.settings.connections import AirflowConnection

TIMEOUT = 5.0
"""Seconds for a connection, and for an answer."""
CHECK_ADDRESS = "check that it runs, and the connection's host, port and protocol"
CHECK_LOGIN = "check the connection's login and password"
CHECK_EXTRA = "check the connection's extra: its names are options of the driver, and its files must exist on this host"
DATABASE_HINTS = {
    r"\(using password|authentication failed|no password supplied|role .* does not exist": CHECK_LOGIN,
    r"Unknown database|to database|database .* does not exist": "check the connection's schema, the name of the "
    "database, and what its login may read",
}


def probe_kafka(connection: AirflowConnection) -> str:
    """List the topics of the brokers."""
    from penstock.kafka.client import probe

    return probe(connection_types.kafka_settings(connection), connection.conn_id)


def probe_database(connection: AirflowConnection) -> str:
    """Log in to the database and ask for its version."""
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    from penstock.settings.database_engine import create_engine

    url = connection_types.database_url(connection)
    seconds, backend = int(TIMEOUT), url.get_backend_name()
    if backend == "sqlite" and not Path(url.database or "").is_file():
        raise SettingError("there is no such file of a database", got=url.database, hint="correct the host, its path")
    limits: dict[str, dict[str, Any]] = {
        "mysql": {"connect_timeout": seconds, "read_timeout": seconds, "write_timeout": seconds},
        "postgresql": {"connect_timeout": seconds},
    }
    try:
        engine = create_engine(url, poolclass=NullPool, connect_args=limits.get(backend, {}))
        with engine.connect() as session:
            version = ".".join(map(str, session.dialect.server_version_info or ()))
    except (SQLAlchemyError, TypeError, OSError) as e:
        # Of an unknown option TypeError names it; no driver's message holds the password.
        reason = str(getattr(e, "orig", None) or e).partition("\n")[0]
        hint = _database_hint(reason) if isinstance(e, SQLAlchemyError) else CHECK_EXTRA
        raise ControlError(f"the {backend} database cannot be used", got=reason[:300], hint=hint) from e
    return f"{backend} {version}, database {url.database or 'not named'}"


def _database_hint(reason: str) -> str:
    """What to check, by the message of MySQL, MariaDB or PostgreSQL."""
    return next((hint for pattern, hint in DATABASE_HINTS.items() if re.search(pattern, reason)), CHECK_ADDRESS)


def probe_elasticsearch(connection: AirflowConnection) -> str:
    """Ask the server who it is."""
    with optional_packages():
        from elasticsearch import ApiError, UnsupportedProductError

        from penstock.sinks.elasticsearch.client import connect, transport_errors

    with closing(connect(connection_types.elasticsearch_url(connection))) as client, transport_errors():
        try:
            info = client.options(request_timeout=TIMEOUT).info()
        except UnsupportedProductError:
            raise
        except ApiError as e:
            if e.status_code == HTTPStatus.FORBIDDEN:
                return "Elasticsearch takes the login, which may not ask for its version"
            hint = CHECK_LOGIN if e.status_code == HTTPStatus.UNAUTHORIZED else CHECK_ADDRESS
            raise SinkError("Elasticsearch refuses the request", got=f"status {e.status_code}", hint=hint) from e
    return f"Elasticsearch {info['version']['number']}, cluster {info['cluster_name']}"


def probe_mongodb(connection: AirflowConnection) -> str:
    """Log in to the server and ask for its version."""
    with optional_packages():
        from pymongo import MongoClient
        from pymongo.errors import ConfigurationError, ConnectionFailure, PyMongoError

    ms = int(TIMEOUT * 1000)
    try:
        client: MongoClient[dict[str, Any]] = MongoClient(
            connection_types.mongodb_url(connection),
            serverSelectionTimeoutMS=ms, connectTimeoutMS=ms, socketTimeoutMS=ms,
        )  # fmt: skip
        with closing(client):
            return f"MongoDB {client.server_info()['version']}"
    except ConnectionFailure as e:
        # Behind it are timeouts and what the client knows of all servers.
        reason = re.split(r" \(configured timeouts|, Timeout: ", str(e))[0]
        raise SinkError("MongoDB does not answer", got=reason[:300], hint=CHECK_ADDRESS) from e
    except (ConfigurationError, ValueError) as e:
        hint = "check the connection's host, and its extra, the options of MongoDB's URL"
        raise SinkError("MongoDB cannot be connected to", got=str(e)[:300], hint=hint) from e
    except PyMongoError as e:
        raise SinkError("MongoDB refuses the connection", got=str(e)[:300], hint=CHECK_LOGIN) from e


def probe_influxdb(connection: AirflowConnection) -> str:
    """List the databases that the user may see."""
    answer = _request("GET", connection_types.influxdb_url(connection), "/query", params={"q": "SHOW DATABASES"})
    try:
        series = answer.json()["results"][0].get("series", [])
        names = [row[0] for one in series for row in one.get("values", [])]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise SinkError("the server is not an InfluxDB 1.x", got=_host_of(answer), hint=CHECK_ADDRESS) from None
    return f"InfluxDB {answer.headers.get('X-Influxdb-Version', '')}, {len(names)} databases visible"


def probe_schema_registry(connection: AirflowConnection) -> str:
    """List the subjects that the user may see."""
    from penstock.registry import client
    from penstock.registry.endpoint import RegistryEndpoint

    url = connection_types.schema_registry_url(connection)
    subjects = client.probe(RegistryEndpoint.parse(url, settings().schema_registry_ca))
    return f"{subjects} subjects visible"


def probe_object_store(connection: AirflowConnection) -> str:
    """List the buckets of the key."""
    from pyarrow import fs

    from penstock.object_store import bucket
    from penstock.object_store.endpoint import connection_endpoint

    store = bucket.filesystem(connection_endpoint(connection))
    try:
        buckets = store.get_file_info(fs.FileSelector(""))
    except OSError as e:
        reason = str(e)[:300]
        # The store has accepted the key's signature.
        if connection.login and "ACCESS_DENIED" in reason:
            return "the object store takes the key, which may not list buckets"
        if bucket.ACCESS_DENIED.search(reason):
            hint = "check the login (the access key), the password (its secret) and region_name"
            raise SinkError("the object store refuses the key", got=reason, hint=hint) from e
        raise SinkError("the object store does not answer", got=reason, hint="check endpoint_url") from e
    return f"{len(buckets)} buckets visible"


def probe_views(connection: AirflowConnection) -> str:
    """List the views with the token, at the Connection's host or else where the settings say that they are served."""
    from dataclasses import replace

    token = connection_types.views_token(connection)
    s = settings()
    url = f"http://{s.views_host}:{s.views_port}"
    if connection.host:
        url = connection_types.http_url(replace(connection, login="", password=""), connection_types.VIEWS)
    answer = _request("GET", url, "/v1/views", headers={"Authorization": f"Bearer {token}"})
    try:
        return f"{len(answer.json()['views'])} views are served at {_host_of(answer)}"
    except (ValueError, LookupError, TypeError):
        raise SinkError("the server serves no views", got=_host_of(answer), hint=CHECK_ADDRESS) from None


def probe_webhook(connection: AirflowConnection) -> str:
    """Post a message that says that it is a test."""
    body = {"text": "INFO airflow: a test of Penstock's alerts", "level": "INFO", "process": "airflow"}
    answer = _request("POST", connection_types.webhook_url(connection), "", json=body)
    return f"a test message was posted to {_host_of(answer)}"


def probe_mask_key(connection: AirflowConnection) -> str:
    """Check the form and the length of a key; nothing is connected to."""
    key = decode_key(connection.conn_id, connection_types.mask_key_text(connection), encrypts=False)
    use = "hashes and encrypts" if len(key) in AES_BYTES else "hashes; to encrypt, it must have 16, 24 or 32 bytes"
    return f"a key of {len(key)} bytes: {use}"


def _request(method: str, url: str, path: str, **more: Any) -> httpx.Response:
    """A successful answer of an HTTP server. SinkError; its text has no URL, which may be a secret."""
    import httpx

    try:
        answer = httpx.request(method, f"{url.rstrip('/')}{path}" if path else url, timeout=TIMEOUT, **more)
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        raise SinkError("the server does not answer", got=type(e).__name__, hint=CHECK_ADDRESS) from None
    if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise SinkError("the server refuses the login", got=f"status {answer.status_code}", hint=CHECK_LOGIN)
    if not answer.is_success:
        raise SinkError("the server refuses the request", got=f"status {answer.status_code}", hint=CHECK_ADDRESS)
    return answer


def _host_of(answer: httpx.Response) -> str:
    return answer.url.netloc.decode()


def explained(e: Exception) -> str:
    """The message of a failed try, for who edits the Connection."""
    return f"{e.what}; got: {e.got}; hint: {CHECK_ADDRESS}" if isinstance(e, Wait) else str(e)
