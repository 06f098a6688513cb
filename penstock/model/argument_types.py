"""Arguments of a kind that cannot be meant, refused before anything is done with them."""

from __future__ import annotations

import math

from penstock.errors import DeclarationError

TYPE_NAMES = {str: "a text", bool: "True or False", int: "a whole number", float: "a number", type(None): "None"}


def check_kind(what: str, name: str, value: object, *kinds: type) -> None:
    """DeclarationError if an argument is of none of the kinds. A float may be whole, but neither NaN nor infinite."""
    accepted = (*kinds, int) if float in kinds else kinds
    fits = isinstance(value, accepted) and (bool in kinds or not isinstance(value, bool))
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        expected = " or ".join(TYPE_NAMES.get(kind, f"a {kind.__name__}") for kind in kinds)
        raise DeclarationError(
            f"{what}: {name} is not what it should be", got=repr(value), hint=f"give {name}={expected}"
        )
