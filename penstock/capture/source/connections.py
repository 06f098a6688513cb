"""The address of a capture's database: an Airflow connection in an environment variable.

`FROM mysql shop` reads `AIRFLOW_CONN_SHOP`, a URI (`mysql://user:password@host:3306/database`) or the JSON form. An
Airflow task that starts captures puts the connections of Airflow's own store there. Passwords are in no file and no
message.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from penstock.errors import DeclarationError
from penstock.settings import settings

DRIVERS = {"mysql": "mysql+pymysql", "postgres": "postgresql+psycopg", "sqlite": "sqlite"}
# Names of the engines in Airflow and SQLAlchemy.
KINDS = {"mysql": "mysql", "mariadb": "mysql", "postgres": "postgres", "postgresql": "postgres", "sqlite": "sqlite"}
DEMO = "demo"


def variable(name: str) -> str:
    """The environment variable of a connection."""
    return f"AIRFLOW_CONN_{name.upper().replace('-', '_').replace('.', '_')}"


def url(name: str, dialect: str) -> URL:
    """The SQLAlchemy URL of a connection, with its password.

    Raises:
        DeclarationError: The connection is missing, invalid or of another engine.
    """
    text = os.environ.get(variable(name), "").strip()
    if not text and name == DEMO and not settings().control_url.get_secret_value():
        return make_url(f"mysql+pymysql://penstock:penstock@127.0.0.1:{settings().mariadb_port}/demo")
    if not text:
        raise DeclarationError(
            f"connection {name} is missing",
            got=f"no {variable(name)} in the environment",
            hint=f"set it, e.g. {variable(name)}='{dialect}://user:password@host/database', or add it in Airflow",
        )
    try:
        parsed = _from_json(text) if text.startswith("{") else make_url(text)
        if "@" in (parsed.host or ""):
            # The password contains it, and its rest would be shown as the host.
            raise ValueError("host")
    except (ValueError, KeyError, TypeError, ArgumentError) as e:
        # Its text may hold a password: the error does not show it.
        raise DeclarationError(
            f"connection {name} cannot be read",
            got=f"{type(e).__name__} in {variable(name)}",
            hint="write a URI, in the password %40 for @, or the JSON form of Airflow's connections",
        ) from None
    kind = KINDS.get(parsed.get_backend_name())
    if kind != dialect:
        raise DeclarationError(
            f"connection {name} is of another engine", got=parsed.get_backend_name(), hint=f"it must be {dialect}"
        )
    if kind == "sqlite" and parsed.host:
        parsed = parsed.set(host=None, database=unquote(parsed.host))
    return parsed.set(drivername=DRIVERS[kind])


def _from_json(text: str) -> URL:
    fields: dict[str, Any] = json.loads(text)
    return URL.create(
        str(fields["conn_type"]),
        username=fields.get("login"),
        password=fields.get("password"),
        host=fields.get("host"),
        port=int(fields["port"]) if fields.get("port") else None,
        database=fields.get("schema"),
    )
