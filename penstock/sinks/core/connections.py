"""Where a store is: by a setting, an Airflow connection in the environment, or a part that `make up` started here.

`PENSTOCK_INFLUXDB_URL`, else `AIRFLOW_CONN_INFLUXDB` (a URI, or the JSON form), and so on. Passwords are in no message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from urllib.parse import quote

from penstock.errors import SinkError
from penstock.host import process
from penstock.settings import settings

# What Airflow calls a connection to it, and what its client does.
SCHEMES: Mapping[str, str] = {"influxdb": "http", "elasticsearch": "http", "mongo": "mongodb"}
LOCAL: Mapping[str, str] = {"elasticsearch": "http", "mongodb": "mongodb", "influxdb": "http"}
"""The scheme under which each store is known that `make up` can start."""


def url(store: str) -> str:
    """Its URL with user and password; empty if none is known. SinkError if the connection given cannot be read."""
    variable = f"AIRFLOW_CONN_{store.upper()}"
    if given := getattr(settings(), f"{store}_url").get_secret_value():
        return str(given)
    if given := os.environ.get(variable, "").strip():
        try:
            return _from_json(given, LOCAL[store]) if given.startswith("{") else _with_scheme(given)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            # Its text may hold a password.
            raise SinkError(
                f"connection {store} cannot be read",
                got=f"{type(e).__name__} in {variable}",
                hint="give a URI, or the JSON form of Airflow's connections",
            ) from None
    record = process.read(settings().home / "run", store)
    port = next(iter(record.ports.values()), None) if record else None
    return f"{LOCAL[store]}://127.0.0.1:{port}" if port else ""


def _with_scheme(uri: str) -> str:
    scheme, mark, rest = uri.partition("://")
    if not mark:
        raise ValueError(uri)
    return f"{SCHEMES.get(scheme, scheme)}://{rest}"


def _from_json(text: str, scheme: str) -> str:
    given = json.loads(text)
    kind = str(given.get("schema") or "")
    user = quote(str(given.get("login") or ""), safe="")
    password = quote(str(given.get("password") or ""), safe="")
    port = f":{int(given['port'])}" if given.get("port") else ""
    account = f"{user}:{password}@" if user else ""
    return f"{'https' if kind == 'https' else scheme}://{account}{given['host']}{port}"
