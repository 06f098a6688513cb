"""One whole platform for all breakers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.java import aot_cache
from tests.chaos.platform import Platform, started


@pytest.fixture(scope="session", autouse=True)
def _fast_start() -> None:
    """Drivers start as they do behind `make up`."""
    aot_cache.ensure()


@pytest.fixture(scope="module", params=["client", "cluster"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with started(tmp_path_factory.mktemp("platform"), request.param) as given:
        yield given
