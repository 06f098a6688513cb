"""Resolves the URL of a server: from a setting, an Airflow Connection, or a server of `penstock up`.

`PENSTOCK_INFLUXDB_URL`, which may name a Connection, else `AIRFLOW_CONN_INFLUXDB` (a URI, or the JSON form), and so on.
No message holds a password.
"""

from __future__ import annotations

from penstock.errors import PenstockError, SettingError
from penstock.host import process
from penstock.host.embedded import refuse_another_home
from penstock.settings import connection_types, connections, settings


def is_configured(name: str) -> bool:
    """Whether a server has a URL, or a Connection that should say it; Airflow is not asked.

    Args:
        name: The name of its settings, and of the embedded server.
    """
    configured = getattr(settings(), f"{name}_url").get_secret_value() or connections.find_text(name, ask=False)
    return bool(configured or _embedded_port(name))


def find(name: str, embedded: str, error: type[PenstockError], *, connecting: bool = True) -> str:
    """The URL of a server with user and password; empty if none is set.

    Args:
        name: The name of its settings, and of the embedded server.
        embedded: The URL of the embedded server, with `{port}`.
        error: The error to raise, which callers expect of this server: the Connection is missing, malformed, of
            another type or incomplete; or the port of the embedded server is that of another home.
        connecting: Whether it is for a connection, and not for a name alone: then the embedded server must be that of
            this home.
    """
    setting = f"{name}_url"
    try:
        if value := settings().secret(setting):
            return value
        if text := connections.find_text(name, ask=False):
            return connection_types.TEXT_OF[setting](connections.AirflowConnection.parse(name, text))
    except SettingError as e:
        raise error(e.what, got=e.got, hint=e.hint) from None
    if not (port := _embedded_port(name)):
        return ""
    if connecting:
        refuse_another_home(f"{name.replace('_', ' ')} server", port, f"PENSTOCK_{name.upper()}_PORT", error)
    return embedded.format(port=port)


def _embedded_port(name: str) -> int:
    """The port of a server of `penstock up`; 0 if it does not run."""
    record = process.read(settings().home / "run", name)
    return next(iter(record.ports.values()), 0) if record else 0
