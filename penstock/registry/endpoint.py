"""Where the schema registry is: by a setting, an Airflow Connection, or the server of `penstock up`.

`PENSTOCK_SCHEMA_REGISTRY_URL`, which may name a Connection, else `AIRFLOW_CONN_SCHEMA_REGISTRY`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.errors import RegistryError, SettingError
from penstock.host import service_url
from penstock.settings import connections, settings

NAME = "schema_registry"
"""The name of the settings, and of the embedded server."""
API = "/apis/ccompat/v7"
"""The path of Confluent's API in the embedded server, Apicurio Registry."""


@dataclass(frozen=True)
class RegistryEndpoint:
    """How to reach the schema registry.

    Attributes:
        url: URLs of HTTP without login, separated by commas: of several, the next one is asked if one does not answer.
        login: `user:password`; empty: none.
        ca: PEM file of CAs; empty: those of the system.
        table: Schemas in the place of a server, for tests: subject, text and kind of each, whose id is its number from
            1. None: there is a server.
    """

    url: str
    login: str = field(default="", repr=False)
    ca: str = ""
    table: tuple[tuple[str, str, str], ...] | None = None

    @classmethod
    def parse(cls, text: str, ca: str = "") -> RegistryEndpoint:
        """Read URLs, of which the first may have user and password.

        Raises:
            SettingError: One is no URL of HTTP; the message does not contain it.
        """
        urls, login = [], ""
        for url in re.split(r",(?=\s*https?://)", text.strip()):
            try:
                parts = urlsplit(url.strip())
                valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError:
                valid = False
            if not valid:
                raise SettingError(
                    "the URL of the schema registry is not valid",
                    got="no http:// or https:// with a host, or a port that is no number",
                    hint="write https://user:password@host:port/path, in the password %40 for @ and %2F for /",
                )
            account, _, place = parts.netloc.rpartition("@")
            login = login or ":".join(map(unquote, account.split(":", 1)))
            urls.append(urlunsplit(parts._replace(netloc=place)).rstrip("/"))
        return cls(",".join(urls), login if not login or ":" in login else f"{login}:", ca)


_in_place: list[RegistryEndpoint] = []


@contextmanager
def in_place_of_settings(endpoint: RegistryEndpoint) -> Iterator[None]:
    """Let this process find an endpoint whatever its settings say; for tests."""
    _in_place.append(endpoint)
    try:
        yield
    finally:
        _in_place.remove(endpoint)


def is_configured() -> bool:
    """Whether there is a schema registry, or a Connection that should name one; Airflow is not asked."""
    return service_url.is_configured(NAME)


def find_endpoint() -> RegistryEndpoint:
    """The endpoint of the settings.

    Raises:
        SettingError: None is configured, or its URL is not valid.
        RegistryError: The Connection is missing, malformed, of another type or incomplete; or the port of the embedded
            registry is that of another home.
    """
    if _in_place:
        return _in_place[-1]
    url = service_url.find(NAME, f"http://127.0.0.1:{{port}}{API}", RegistryError)
    if not url:
        raise SettingError(
            "no schema registry is configured",
            got=f"neither PENSTOCK_SCHEMA_REGISTRY_URL nor {connections.variable(NAME)} is set, and none runs here",
            hint="set PENSTOCK_SCHEMA_REGISTRY_URL to https://user:password@host:8081 or airflow://ID, or start the "
            "embedded one: `PENSTOCK_REGISTRY=1 penstock up`",
        )
    return RegistryEndpoint.parse(url, settings().schema_registry_ca)
