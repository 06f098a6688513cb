"""Airflow Connections that settings and captures name by id.

A setting names one as ``airflow://ID``. Airflow itself is asked only in its own processes, where `penstock.airflow`
calls `set_lookup`. They pass what they read to the processes that they start, as variables ``AIRFLOW_CONN_<ID>``; other
processes, such as commands, have only those of their environment. No message holds a password.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import SettingError

SCHEME = "airflow://"
# As Airflow's own forms and variables take it.
CONN_ID = re.compile(r"[\w.-]{1,250}", re.ASCII)

TEXTS = ("host", "login", "password", "schema")

Lookup = Callable[[str], str | None]
"""The JSON form of Airflow's Connection of an id; None if it has none."""

_lookups: list[Lookup] = []


@dataclass(frozen=True)
class AirflowConnection:
    """The fields of a Connection, as Airflow names them.

    Attributes:
        extra: The fields of its extra JSON.
    """

    conn_id: str
    conn_type: str = ""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, conn_id: str, text: str) -> Self:
        """Read the JSON form or the URI of a Connection.

        Raises:
            SettingError: It is neither.
        """
        part = ""
        try:
            fields = json.loads(text) if text.lstrip().startswith("{") else _fields_of_uri(text)
            part = ": its extra is no JSON object"
            extra = fields.get("extra") or {}
            extra = dict(json.loads(extra) if isinstance(extra, str) else extra)
            part = ": its port is no number"
            port = int(fields["port"]) if fields.get("port") else None
            part = ""
            if any(isinstance(fields.get(name), list | dict) for name in ("conn_type", *TEXTS)):
                raise TypeError("no text")
            # Half of a surrogate pair goes into no URL and no file.
            json.dumps([fields, extra], ensure_ascii=False).encode()
            return cls(
                conn_id,
                str(fields.get("conn_type") or "").replace("-", "_"),
                port=port,
                extra=extra,
                **{name: str(fields.get(name) or "") for name in TEXTS},
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            # The error's text may hold a password.
            raise SettingError(
                f"connection {conn_id} cannot be read{part}",
                got=f"{type(e).__name__}, from Airflow or {variable(conn_id)}",
                hint="correct it in Airflow; a variable is a URI, in the password %40 for @, or the JSON form of "
                "Airflow's connections",
            ) from None

    def incomplete(self, lack: str, hint: str) -> SettingError:
        """The error for what the Connection lacks or has wrong."""
        return SettingError(
            f"connection {self.conn_id} {lack}",
            got=f"type {self.conn_type or 'not named'}",
            hint=hint,
        )

    def require_type(self, types: Iterable[str]) -> None:
        """Check its type. SettingError if it is another; none at all is accepted.

        Args:
            types: Those that are accepted, the preferred one first.
        """
        accepted = list(types)
        if self.conn_type and self.conn_type not in accepted:
            raise SettingError(
                f"connection {self.conn_id} is of another type",
                got=self.conn_type,
                hint=f"it must be {' or '.join(accepted)}",
            )

    def require_host(self) -> None:
        """Check that it has a host. SettingError if not."""
        if not self.host:
            raise self.incomplete("has no host", "fill in the host")


def variable(conn_id: str) -> str:
    """The environment variable of a Connection."""
    return f"AIRFLOW_CONN_{conn_id.upper().replace('-', '_').replace('.', '_')}"


def connection_id(value: str) -> str:
    """The id of the Connection that a setting's value names; empty if it names none.

    Raises:
        ValueError: What follows `airflow://` is no id.
    """
    if not value.startswith(SCHEME):
        return ""
    conn_id = value.removeprefix(SCHEME).rstrip("/")
    if not CONN_ID.fullmatch(conn_id):
        raise ValueError("write airflow://ID, with the id of a Connection of Airflow, of letters, digits, _, - and .")
    return conn_id


def set_lookup(lookup: Lookup | None) -> None:
    """Say how this process asks Airflow; None: it cannot."""
    _lookups[:] = [lookup] if lookup else []


def find_text(conn_id: str, *, ask: bool = True) -> str:
    """The JSON form or URI of a Connection; empty if there is none.

    Args:
        ask: Whether Airflow may be asked; if not, only the environment is read.
    """
    for lookup in _lookups if ask else ():
        if text := lookup(conn_id):
            return text
    return os.environ.get(variable(conn_id), "").strip()


def find(conn_id: str, example: str = "", *, ask: bool = True) -> AirflowConnection:
    """The Connection of an id.

    Args:
        example: A URI, for the hint.
        ask: As for `find_text`.

    Raises:
        SettingError: It does not exist, or cannot be read.
    """
    if text := find_text(conn_id, ask=ask):
        return AirflowConnection.parse(conn_id, text)
    set_it = f"{variable(conn_id)}='{example or 'TYPE://user:password@host'}'"
    if _lookups:
        raise SettingError(
            f"connection {conn_id} is missing",
            got=f"Airflow has no connection of this id, and no {variable(conn_id)} is in the environment",
            hint=f"add it in Airflow (Admin > Connections), or set {set_it}",
        )
    raise SettingError(
        f"connection {conn_id} is missing",
        got=f"no {variable(conn_id)} in the environment; this process does not run in Airflow and cannot ask it",
        hint=f"set it, e.g. {set_it}; if Airflow started this process, add it in Airflow and release the app",
    )


def variables(conn_ids: Iterable[str]) -> dict[str, str]:
    """Variables by which a process that is started gets Connections of Airflow; those that do not exist are left out,
    and it reports them if it needs them. They hold secrets: never log them.

    Raises:
        SettingError: Two ids have one variable, so that one would be taken for the other.
    """
    texts: dict[str, tuple[str, str]] = {}
    for conn_id in sorted(set(conn_ids)):
        if text := find_text(conn_id):
            other, text_of_other = texts.setdefault(variable(conn_id), (conn_id, text))
            if text != text_of_other:
                raise SettingError(
                    f"connections {other} and {conn_id} have one variable, {variable(conn_id)}",
                    got="ids that differ by case, '-', '.' and '_' alone",
                    hint="give one of them another id",
                )
    return {name: text for name, (_, text) in texts.items()}


def _fields_of_uri(uri: str) -> dict[str, Any]:
    """The fields of a Connection's URI, as Airflow reads them. Several hosts, with ports, stay one host."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise ValueError("no URI")
    # `elasticsearch://https://host`: the host keeps its protocol.
    protocol, inner, behind = rest.partition("://")
    protocol, rest = (f"{protocol}://", behind) if inner and "/" not in protocol and "@" not in protocol else ("", rest)
    parts = urlsplit(f"//{rest}")
    account, _, place = parts.netloc.rpartition("@")
    if "@" in account:
        # The password contains it, and its rest would be shown as the host.
        raise ValueError("host")
    login, _, password = account.partition(":")
    host, _, port = ("", "", "")
    if "," in place or place.endswith("]"):
        host = place
    else:
        host, colon, port = place.rpartition(":")
        host, port = (host, port) if colon else (place, "")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return {
        "conn_type": {"postgresql": "postgres"}.get(scheme, scheme),
        "host": protocol + unquote(host) if host else "",
        "port": port,
        "login": unquote(login),
        "password": unquote(password),
        "schema": unquote(parts.path[1:]),
        "extra": query.get("__extra__") or query,
    }
