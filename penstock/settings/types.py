"""Types of settings: what a variable's text may be."""

import re
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

MEMORY = r"^[1-9][0-9]*[mgMG]$"
"""A size as Java takes that of a heap."""


def _seconds(given: object) -> object:
    return float(given) if isinstance(given, str) and re.fullmatch(r"\s*\d{1,12}(\.\d*)?\s*", given) else given


def _absolute(given: str) -> str:
    if given and not Path(given).is_absolute():
        raise ValueError("parts and drivers run in folders of their own: give the whole path")
    return given


def _authority(given: str) -> str:
    if _absolute(given):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(given)
        except OSError as e:
            raise ValueError(f"no PEM file of certificates: {e.strerror or e}") from None
    return given


Absolute = Annotated[str, AfterValidator(_absolute)]
"""A path; empty for none."""
Authority = Annotated[str, AfterValidator(_authority)]
"""The path of a CA's certificates; empty for none."""
Duration = Annotated[timedelta, BeforeValidator(_seconds)]
"""ISO 8601 (`PT25M`), or seconds, which pydantic takes of numbers only."""
