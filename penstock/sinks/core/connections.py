"""The URLs of stores (`penstock.host.service_url`). No message holds a password."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import SinkError
from penstock.host import service_url
from penstock.settings import connections

EXAMPLES: Mapping[str, str] = {
    "elasticsearch": "http://user:password@host:9200",
    "mongodb": "mongodb://user:password@host:27017",
    "influxdb": "http://user:password@host:8086",
}


def is_configured(store: str) -> bool:
    """Whether a store has a URL, or a Connection that should say it; Airflow is not asked."""
    return service_url.is_configured(store)


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
    embedded = f"{EXAMPLES[store].partition(':')[0]}://127.0.0.1:{{port}}"
    return service_url.find(store, embedded, SinkError, connecting=connecting)


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
