"""Fixtures of the engine's integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.engine.query import run_state, stream_run


@pytest.fixture(autouse=True)
def _short_retry_delays() -> Iterator[None]:
    """A stream that failed or is blocked is tried again soon: unit tests know the delays of production."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_state, "RETRY_DELAYS_S", (0.0, 0.1, 0.2))
        patch.setattr(stream_run, "BLOCKED_RETRY_S", 1.0)
        yield
