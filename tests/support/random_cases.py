"""How many random cases tests try: some in `make test`, all of them in `make test-all`, which sets FUZZ."""

from __future__ import annotations

import os

FULL = "FUZZ" in os.environ


def tries(few: int) -> int:
    """The number of random inputs of a test: `few`, or what FUZZ says."""
    return int(os.environ.get("FUZZ", few))


def seeds(few: int, all_of_them: int) -> range:
    """The seeds of a test whose cases are expensive."""
    return range(all_of_them if FULL else few)
