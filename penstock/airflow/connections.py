"""Connections of Airflow, as the settings read them."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import SettingError
from penstock.settings.connections import set_lookup

FIELDS = ("conn_type", "host", "port", "login", "password", "schema", "extra")


def resolve_in_airflow() -> None:
    """Let the settings of this process, which is one of Airflow's, ask it for Connections."""
    set_lookup(lookup)


def lookup(conn_id: str) -> str | None:
    """The JSON form of the Connection of an id, from Airflow's secrets backends; None if they have none.

    Not for code that runs while DAGs are parsed.

    Raises:
        SettingError: Airflow does not answer.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return connection_json(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException:
        return None
    except Exception as e:  # a backend of any maker may fail in any way
        raise SettingError(
            f"Airflow does not tell the connection {conn_id}",
            got=type(e).__name__,
            hint="see the log of Airflow's API server and of its secrets backend",
        ) from e


def connection_json(connection: Any) -> str:
    """The JSON form of a Connection, of the SDK or of Airflow's database; it holds its password: never log it."""
    return json.dumps({name: value for name in FIELDS if (value := getattr(connection, name))})
