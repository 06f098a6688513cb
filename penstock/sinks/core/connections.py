"""Resolves the URL of a store: from a setting, an Airflow Connection, or a server of `penstock up`.

`PENSTOCK_INFLUXDB_URL`, which may name a Connection, else `AIRFLOW_CONN_INFLUXDB` (a URI, or the JSON form), and so on.
No message holds a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from penstock.errors import SettingError, SinkError
from penstock.host import process
from penstock.host.embedded import refuse_another_home
from penstock.settings import connection_types, connections, settings

EXAMPLES: Mapping[str, str] = {
    "elasticsearch": "http://user:password@host:9200",
    "mongodb": "mongodb://user:password@host:27017",
    "influxdb": "http://user:password@host:8086",
}


def is_configured(store: str) -> bool:
    """Whether a store has a URL, or a Connection that should say it; Airflow is not asked."""
    setting = f"{store}_url"
    return bool(getattr(settings(), setting).get_secret_value() or connections.find_text(store, ask=False)) or bool(
        _server_url(store)
    )


def url(store: str, *, connecting: bool = True) -> str:
    """The URL of a store with user and password; empty if none is set.

    Args:
        store: Its name.
        connecting: Whether it is for a connection, and not for a name alone: then the embedded server must be that of
            this home.

    Raises:
        SinkError: The Connection is missing, malformed, of another type or incomplete; or the port of the embedded
            server is that of another home.
    """
    setting = f"{store}_url"
    try:
        if value := settings().secret(setting):
            return value
        if text := connections.find_text(store, ask=False):
            return connection_types.TEXT_OF[setting](connections.AirflowConnection.parse(store, text))
    except SettingError as e:
        raise SinkError(e.what, got=e.got, hint=e.hint) from None
    address = _server_url(store)
    if connecting and address:
        port = urlsplit(address).port or 0
        refuse_another_home(f"{store} server", port, f"PENSTOCK_{store.upper()}_PORT", SinkError)
    return address


def required_url(store: str, output: str) -> str:
    """The URL of a store. SinkError if none is set; output: the name of what is written there."""
    if address := url(store):
        return address
    setting, connection = f"PENSTOCK_{store.upper()}_URL", connections.variable(store)
    raise SinkError(
        f"the URL of {store} is not known, so {output} cannot be written",
        got=f"neither {setting} nor {connection} is set",
        hint=f"set {setting} to {EXAMPLES[store]}, and restart the driver (penstock streams release)",
    )


def _server_url(store: str) -> str:
    """The URL of a server of `penstock up`; empty if it does not run."""
    record = process.read(settings().home / "run", store)
    port = next(iter(record.ports.values()), None) if record else None
    return f"{EXAMPLES[store].partition(':')[0]}://127.0.0.1:{port}" if port else ""
