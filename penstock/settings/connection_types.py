"""What Airflow Connections of each type say, as the values of settings.

Own types are `penstock_*`; those of other providers are accepted where their fields mean the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from pydantic import ValidationError

from penstock.errors import SettingError
from penstock.settings.kafka import KafkaSettings

if TYPE_CHECKING:
    from sqlalchemy import URL

    from penstock.settings.connections import AirflowConnection

KAFKA = ("penstock_kafka", "kafka")
DATABASE = ("penstock_database", "mysql", "mariadb", "postgres", "postgresql", "sqlite")
ELASTICSEARCH = ("penstock_elasticsearch", "elasticsearch", "http", "https")
MONGODB = ("penstock_mongodb", "mongo", "mongodb", "mongodb+srv")
INFLUXDB = ("penstock_influxdb", "influxdb", "http", "https")
SCHEMA_REGISTRY = ("penstock_schema_registry", "http", "https")
OBJECT_STORE = ("penstock_s3", "aws", "s3")
VIEWS = ("penstock_views", "http", "https", "generic")
WEBHOOK = ("penstock_webhook", "slackwebhook", "http", "https")
SECRET = ("generic",)
MASK_KEY = ("penstock_mask_key", "generic")

TLS_SWITCHES = ("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")
DRIVERS = {"mysql": "mysql+pymysql", "postgres": "postgresql+psycopg", "sqlite": "sqlite"}
DIALECTS = {"mysql": "mysql", "mariadb": "mysql", "postgres": "postgres", "postgresql": "postgres", "sqlite": "sqlite"}
# Extras of librdkafka's names, and the settings that they are.
KAFKA_EXTRAS = {
    "bootstrap.servers": "kafka_bootstrap",
    "security.protocol": "kafka_security_protocol",
    "ssl.ca.location": "kafka_ca",
    "ssl.certificate.location": "kafka_certificate",
    "ssl.key.location": "kafka_key",
    "ssl.key.password": "kafka_key_password",
    "sasl.mechanism": "kafka_sasl_mechanism",
    "sasl.mechanisms": "kafka_sasl_mechanism",
    "sasl.username": "kafka_username",
    "sasl.password": "kafka_password",
}
# Extras of AWS's type that would change who logs in.
AWS_UNSUPPORTED = ("role_arn", "aws_session_token", "profile_name", "assume_role_method")


class ObjectStoreFields(NamedTuple):
    """What a Connection says of an object store: its endpoint, empty for AWS, region, access key and secret."""

    url: str
    region: str
    access_key: str
    secret_key: str


def kafka_settings(connection: AirflowConnection) -> KafkaSettings:
    """The brokers and the login of a Connection.

    Raises:
        SettingError: It is of another type, incomplete, or asks for what Penstock's clients do not have.
    """
    connection.require_type(KAFKA)
    refused = [
        name
        for name, value in connection.extra.items()
        if value
        and name not in KAFKA_EXTRAS
        # A misspelled option of the login would be one that is not set.
        and re.match(r"(ssl|sasl|security|enable\.ssl)\b|bootstrap\.servers$", name.lower().replace("_", "."))
    ]
    if refused:
        raise connection.incomplete(
            f"has options that are not supported: {', '.join(refused)}", f"take some of {', '.join(KAFKA_EXTRAS)}"
        )
    host = connection.host + (f":{connection.port}" if connection.port else "")
    fields = {"kafka_bootstrap": host, "kafka_username": connection.login, "kafka_password": connection.password}
    fields |= {KAFKA_EXTRAS[name]: value for name, value in connection.extra.items() if name in KAFKA_EXTRAS and value}
    if not fields["kafka_bootstrap"]:
        raise connection.incomplete("names no brokers", "fill in the host, or bootstrap.servers in the extra")
    try:
        return KafkaSettings(**{name: value for name, value in fields.items() if value})
    except ValidationError as e:
        reasons = [
            ".".join(map(str, error["loc"])) + ": " * bool(error["loc"]) + error["msg"].removeprefix("Value error, ")
            for error in e.errors()
        ]
        raise connection.incomplete(
            f"cannot be used: {_as_extras('; '.join(reasons))}", "correct its login, password and extra"
        ) from None


def database_url(connection: AirflowConnection, dialect: str = "") -> URL:
    """The SQLAlchemy URL of a database, with its password.

    Args:
        dialect: `mysql`, `postgres` or `sqlite`, which it must be; empty for any.

    Raises:
        SettingError: It is of another type or engine, or incomplete.
    """
    from sqlalchemy import URL

    options = _driver_options(connection)
    # A URL of SQLAlchemy names the driver too.
    engine = connection.conn_type.partition("+")[0]
    if engine == DATABASE[0]:
        engine = options.pop("dialect", "")
        if not engine:
            raise connection.incomplete("names no dialect", "choose mysql, postgres or sqlite")
    if engine not in DIALECTS or (dialect and DIALECTS[engine] != dialect):
        raise SettingError(
            f"connection {connection.conn_id} is of another engine",
            got=engine,
            hint=f"it must be {dialect or ' or '.join(DATABASE)}",
        )
    if DIALECTS[engine] == "sqlite":
        return URL.create("sqlite", database=unquote(connection.host) or connection.schema, query=options)
    connection.require_host()
    return URL.create(
        DRIVERS[DIALECTS[engine]], connection.login or None, connection.password or None, connection.host,
        connection.port, connection.schema or None, options,
    )  # fmt: skip


def _driver_options(connection: AirflowConnection) -> dict[str, str]:
    """The extras of a database as options of its driver.

    Raises:
        SettingError: One of them cannot be an option. Without it the connection might not be encrypted.
    """
    extra = dict(connection.extra)
    # Of other providers: how their hooks fetch rows.
    extra.pop("cursor", None)
    tls = extra.pop("ssl", None)
    try:
        # Airflow's own form for MySQL, also as text.
        parts: dict[str, Any] = json.loads(tls) if isinstance(tls, str) else tls or {}
        options = {f"ssl_{name}": value for name, value in parts.items()} | extra
    except (ValueError, AttributeError, RecursionError):
        raise connection.incomplete("has an extra `ssl` that is no object", 'write {"ca": "/path/to/ca.pem"}') from None
    _check_options(connection, options)
    return {name: _option(value) for name, value in options.items() if not _is_off(name, value)}


def _check_options(connection: AirflowConnection, options: Mapping[str, Any]) -> None:
    if refused := sorted(name for name, value in options.items() if not isinstance(value, str | int | float | None)):
        names = ", ".join(refused)
        raise connection.incomplete(f"has options that are not supported: {names}", "write texts or numbers")


def _is_off(name: str, value: object) -> bool:
    """Whether an option says what holds without it. To a driver of MySQL each text is true, `false` too."""
    if name == "ssl_check_hostname":
        return False
    return value is None or value is False or (name in TLS_SWITCHES and str(value).lower() in ("false", "0"))


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def http_url(connection: AirflowConnection, types: tuple[str, ...]) -> str:
    """A URL of HTTP, with user and password: the schema is the protocol, as other providers have it, or else the path.

    Args:
        types: The types that it may have.

    Raises:
        SettingError: It is of another type, or has no host.
    """
    connection.require_type(types)
    connection.require_host()
    protocol, separator, host = connection.host.rpartition("://")
    scheme, path = (connection.conn_type if connection.conn_type in ("http", "https") else "http"), ""
    if connection.schema in ("http", "https"):
        scheme = connection.schema
    elif connection.schema:
        path = "/" + quote(connection.schema.lstrip("/"))
    port = f":{connection.port}" if connection.port else ""
    return f"{protocol if separator else scheme}://{_account(connection)}{host}{port}{path}"


def elasticsearch_url(connection: AirflowConnection) -> str:
    """The URL of Elasticsearch, with user and password. SettingError."""
    return http_url(connection, ELASTICSEARCH)


def influxdb_url(connection: AirflowConnection) -> str:
    """The URL of InfluxDB, with user and password. SettingError."""
    return http_url(connection, INFLUXDB)


def schema_registry_url(connection: AirflowConnection) -> str:
    """The URL of the schema registry, with user and password. SettingError."""
    return http_url(connection, SCHEMA_REGISTRY)


def mongodb_url(connection: AirflowConnection) -> str:
    """The URL of MongoDB, with user and password; its extra holds options of the URL, and `srv`. SettingError."""
    connection.require_type(MONGODB)
    connection.require_host()
    options = {name: value for name, value in connection.extra.items() if value not in ("", None)}
    _check_options(connection, options)
    srv = _is_true(options.pop("srv", "")) or connection.conn_type == "mongodb+srv"
    # As the provider `mongo` names them.
    for name, option in (("ssl", "tls"), ("allow_insecure", "tlsInsecure")):
        if _is_true(options.pop(name, "")):
            options[option] = "true"
    port = f":{connection.port}" if connection.port and not srv else ""
    query = urlencode(
        {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    )
    path = f"/{quote(connection.schema, safe='')}" if connection.schema or query else ""
    scheme = "mongodb+srv" if srv else "mongodb"
    return f"{scheme}://{_account(connection)}{connection.host}{port}{path}" + (f"?{query}" if query else "")


def object_store_fields(connection: AirflowConnection) -> ObjectStoreFields:
    """The endpoint and the key of an object store. SettingError."""
    connection.require_type(OBJECT_STORE)
    if refused := [name for name in AWS_UNSUPPORTED if connection.extra.get(name)]:
        raise connection.incomplete(
            f"has options that are not supported: {', '.join(refused)}",
            "give an access key as login and password, or neither for what AWS's own tools use",
        )
    if bool(connection.login) != bool(connection.password):
        raise connection.incomplete("has half of a key", "give the access key as login and its secret as password")
    service = connection.extra.get("service_config") or {}
    own = (service.get("s3") or {}) if isinstance(service, Mapping) else None
    if not isinstance(own, Mapping):
        raise connection.incomplete(
            "has a `service_config` that is no object", 'write {"s3": {"endpoint_url": "https://host:9000"}}'
        )
    url = own.get("endpoint_url") or connection.extra.get("endpoint_url") or ""
    region = connection.extra.get("region_name") or ""
    _check_options(connection, {"endpoint_url": url, "region_name": region})
    return ObjectStoreFields(str(url), str(region), connection.login, connection.password)


def views_token(connection: AirflowConnection) -> str:
    """The token of the views, which is the password. SettingError."""
    return _password(connection, VIEWS)


def secret_text(connection: AirflowConnection) -> str:
    """A single secret, which is the password. SettingError."""
    return _password(connection, SECRET)


def mask_key_text(connection: AirflowConnection) -> str:
    """A key of masks in base64, which is the password. SettingError."""
    return _password(connection, MASK_KEY)


def webhook_url(connection: AirflowConnection) -> str:
    """The URL of a webhook: the password, or what follows the host in it, or made of the fields. SettingError."""
    connection.require_type(WEBHOOK)
    if connection.password.startswith(("http://", "https://")):
        return connection.password
    if connection.conn_type == WEBHOOK[0]:
        raise connection.incomplete("has no URL", "write the whole URL, http:// or https://, as its password")
    if connection.conn_type == "slackwebhook":
        connection.require_host()
        host = connection.host if "://" in connection.host else f"https://{connection.host}"
        return f"{host.rstrip('/')}/{connection.password.lstrip('/')}"
    return http_url(connection, WEBHOOK)


TEXT_OF: Mapping[str, Callable[[AirflowConnection], str]] = {
    "control_url": lambda connection: database_url(connection).render_as_string(hide_password=False),
    "elasticsearch_url": elasticsearch_url,
    "mongodb_url": mongodb_url,
    "influxdb_url": influxdb_url,
    "schema_registry_url": schema_registry_url,
    "views_token": views_token,
    "alert_webhook": webhook_url,
    "heartbeat_secret": secret_text,
    "spark_secret": secret_text,
}
"""Settings whose whole value a Connection may give, and what gives it."""
REFERABLE = ("kafka_bootstrap", "s3_url", *TEXT_OF)
"""Settings that may name a Connection."""


def _account(connection: AirflowConnection) -> str:
    if not connection.login:
        return ""
    return f"{quote(connection.login, safe='')}:{quote(connection.password, safe='')}@"


def _password(connection: AirflowConnection, types: tuple[str, ...]) -> str:
    connection.require_type(types)
    if not connection.password:
        raise connection.incomplete("has no password", "write the secret as its password")
    return connection.password


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes", "on")


def _as_extras(text: str) -> str:
    """A message with the names of the extra in place of those of settings."""
    names = {name: extra for extra, name in reversed(KAFKA_EXTRAS.items())}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f"PENSTOCK_{name.upper()}", names[name]).replace(name, names[name])
    return text
