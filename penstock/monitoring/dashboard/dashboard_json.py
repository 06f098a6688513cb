"""The data of the operator page as JSON."""

from __future__ import annotations

from typing import Any

from penstock.control import Control
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import StateLimits


def answer(control: Control, limits: StateLimits, **others: Any) -> bytes:
    """The overview as JSON, with other attributes; ControlError if the database does not answer."""
    return overview(read(control), limits).as_json(**others)
