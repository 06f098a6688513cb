"""Types of settings."""

import re
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, SecretStr

MEMORY = r"^[1-9][0-9]*[mgMG]$"
"""Pattern of a heap size, as Java writes it."""


def _seconds(value: object) -> object:
    return float(value) if isinstance(value, str) and re.fullmatch(r"\s*\d{1,12}(\.\d*)?\s*", value) else value


PATH = "path"
"""Marks settings that are paths. In a project's pyproject.toml they may begin at its folder."""

_Location = TypeVar("_Location", str, Path)


def absolute(path: _Location) -> _Location:
    """The same path. ValueError if it would mean another place in each process."""
    if str(path) and not Path(path).is_absolute():
        raise ValueError("servers and drivers run in folders of their own: give the whole path")
    return path


def _authority(path: str) -> str:
    if absolute(path):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except OSError as e:
            raise ValueError(f"no PEM file of certificates: {e.strerror or e}") from None
    return path


def _stripped(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


Absolute = Annotated[str, AfterValidator(absolute), PATH]
"""A path; empty for none."""
Folder = Annotated[Path, AfterValidator(absolute), PATH]
Authority = Annotated[str, AfterValidator(_authority), PATH]
"""The path of a CA's certificates; empty for none."""
Duration = Annotated[timedelta, BeforeValidator(_seconds)]
"""ISO 8601 (`PT25M`) or seconds. pydantic accepts seconds as numbers only, not as text."""
Url = Annotated[str, BeforeValidator(_stripped)]
"""White space around it is no part of it: a variable that is made of a file ends with a newline."""
SecretUrl = Annotated[SecretStr, BeforeValidator(_stripped)]
"""A URL that may hold a password."""
