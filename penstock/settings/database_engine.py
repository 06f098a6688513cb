"""Engines of SQLAlchemy for databases that settings and Connections name."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Engine, event
from sqlalchemy import create_engine as sqlalchemy_engine

from penstock.errors import optional_packages


def create_engine(url: URL, **options: Any) -> Engine:
    """As `sqlalchemy.create_engine`, with passwords of any characters.

    Raises:
        MissingExtra: The database's driver is not installed.
    """
    with optional_packages():
        engine = sqlalchemy_engine(url, **options)
    if engine.driver == "pymysql":
        event.listen(engine, "do_connect", _encode_password)
    return engine


def _encode_password(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    # PyMySQL sends a text as Latin-1, and the servers compare with UTF-8.
    password = parameters.get("password")
    if isinstance(password, str):
        parameters["password"] = password.encode(errors="surrogatepass")
