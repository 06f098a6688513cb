"""The address of a capture's database: an Airflow Connection.

`FROM mysql shop` names the Connection `shop`. The process has it as `AIRFLOW_CONN_SHOP`, a URI
(`mysql://user:password@host:3306/database`) or the JSON form: Airflow gives it to the drivers that it launches.
Passwords are in no file and no message.
"""

from __future__ import annotations

from sqlalchemy import URL, make_url

from penstock.errors import DeclarationError, SettingError
from penstock.host.embedded import refuse_another_home
from penstock.settings import connection_types, connections, settings

DEMO = "demo"


def url(name: str, dialect: str, *, ask: bool = True) -> URL:
    """The SQLAlchemy URL of a connection, with its password.

    Args:
        ask: As for `penstock.settings.connections.find_text`. Without it nothing is connected to, and the embedded
            server is not looked for.

    Raises:
        DeclarationError: The connection is missing, invalid or of another engine; or the port of the embedded server is
            that of another home.
    """
    is_embedded = name == DEMO and not settings().control_url.get_secret_value()
    if is_embedded and not connections.find_text(name, ask=ask):
        port = settings().mariadb_port
        if ask:
            refuse_another_home("MariaDB server", port, "PENSTOCK_MARIADB_PORT", DeclarationError)
        return make_url(f"mysql+pymysql://penstock:penstock@127.0.0.1:{port}/demo")
    try:
        connection = connections.find(name, f"{dialect}://user:password@host/database", ask=ask)
        return connection_types.database_url(connection, dialect)
    except SettingError as e:
        raise DeclarationError(e.what, got=e.got, hint=e.hint) from None
