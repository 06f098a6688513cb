"""Settings of an app that a stream in SQL declares."""

from __future__ import annotations

import os
import re
from datetime import timedelta

from pydantic import TypeAdapter, ValidationError

from penstock.errors import DeclarationError
from penstock.settings.types import Duration


def app_duration(app: str, name: str, default: timedelta) -> timedelta:
    """The duration in the variable `PENSTOCK_<APP>_<NAME>`, as ISO 8601 or seconds; the default if it is not set.

    Raises:
        DeclarationError: The variable is no duration, or one below zero.
    """
    variable = "PENSTOCK_" + re.sub(r"\W", "_", f"{app}_{name}", flags=re.ASCII).upper()
    text = os.environ.get(variable)
    if text is None:
        return default
    hint = f"write ISO 8601, as PT30M, or seconds; or unset it for {default}"
    try:
        value = TypeAdapter(Duration).validate_python(text)
    except ValidationError as e:
        raise DeclarationError(f"{variable} is no duration", got=repr(text), hint=hint) from e
    if value < timedelta(0):
        raise DeclarationError(f"{variable} is below zero", got=repr(text), hint=hint)
    return value
