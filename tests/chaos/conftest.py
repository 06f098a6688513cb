"""One platform for all tests of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.java import aot_cache
from tests.chaos.platform import Platform, start_platform


@pytest.fixture(scope="session", autouse=True)
def _fast_start() -> None:
    """Create the class cache, as `make up` does."""
    aot_cache.ensure()


@pytest.fixture(scope="module", params=["client", "cluster"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with start_platform(tmp_path_factory.mktemp("platform"), request.param) as running:
        yield running
