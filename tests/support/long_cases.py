"""Cases of a test of which `make test` runs some, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet


def quick(cases: Iterable[str], *names: str) -> Collection[ParameterSet]:
    """The cases as parameters; those without one of the names are long."""
    cases = list(cases)
    assert set(names) <= set(cases), f"there are no cases {sorted({*names} - {*cases})}"
    return [pytest.param(case, marks=() if case in names else pytest.mark.long) for case in cases]
