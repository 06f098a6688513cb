"""Resolves the URL of a store: from a setting, an Airflow connection in the environment, or a server of `penstock up`.

`PENSTOCK_INFLUXDB_URL`, else `AIRFLOW_CONN_INFLUXDB` (a URI, or the JSON form), and so on. No message holds a password.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from urllib.parse import quote

from penstock.errors import SinkError
from penstock.host import process
from penstock.settings import settings

# The scheme of an Airflow connection, and what the store's client expects.
CLIENT_SCHEMES: Mapping[str, str] = {"influxdb": "http", "elasticsearch": "http", "mongo": "mongodb"}
EXAMPLES: Mapping[str, str] = {
    "elasticsearch": "http://user:password@host:9200",
    "mongodb": "mongodb://user:password@host:27017",
    "influxdb": "http://user:password@host:8086",
}


def url(store: str) -> str:
    """The URL of a store with user and password; empty if none is set. SinkError if the connection is malformed."""
    variable, scheme = f"AIRFLOW_CONN_{store.upper()}", EXAMPLES[store].partition(":")[0]
    if setting := getattr(settings(), f"{store}_url").get_secret_value():
        return str(setting)
    if connection := os.environ.get(variable, "").strip():
        try:
            if connection.startswith("{"):
                return _url_of_json(connection, scheme)
            return _url_of_uri(connection)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            # The error's text may hold a password.
            raise SinkError(
                f"connection {store} cannot be read",
                got=f"{type(e).__name__} in {variable}",
                hint="give a URI, or the JSON form of Airflow's connections",
            ) from None
    record = process.read(settings().home / "run", store)
    port = next(iter(record.ports.values()), None) if record else None
    return f"{scheme}://127.0.0.1:{port}" if port else ""


def required_url(store: str, output: str) -> str:
    """The URL of a store. SinkError if none is set; output: the name of what is written there."""
    if found := url(store):
        return found
    setting, connection = f"PENSTOCK_{store.upper()}_URL", f"AIRFLOW_CONN_{store.upper()}"
    raise SinkError(
        f"the URL of {store} is not known, so {output} cannot be written",
        got=f"neither {setting} nor {connection} is set",
        hint=f"set {setting} to {EXAMPLES[store]}, and restart the driver (penstock streams release)",
    )


def _url_of_uri(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise ValueError(uri)
    return f"{CLIENT_SCHEMES.get(scheme, scheme)}://{rest}"


def _url_of_json(text: str, scheme: str) -> str:
    connection = json.loads(text)
    kind = str(connection.get("schema") or "")
    user = quote(str(connection.get("login") or ""), safe="")
    password = quote(str(connection.get("password") or ""), safe="")
    port = f":{int(connection['port'])}" if connection.get("port") else ""
    account = f"{user}:{password}@" if user else ""
    return f"{'https' if kind == 'https' else scheme}://{account}{connection['host']}{port}"
