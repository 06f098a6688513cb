"""What the operator page is answered, of as many streams as there are."""

from __future__ import annotations

from typing import Any

from penstock.control import Control
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import StateLimits


def answer(control: Control, limits: StateLimits, **beside: Any) -> bytes:
    """The page's data as JSON, with what is given beside it; ControlError when the database is away."""
    return overview(read(control), limits).as_json(**beside)
