"""One platform for all tests of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.platform import Platform, start_platform


@pytest.fixture(scope="module", params=["client", "cluster"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with start_platform(tmp_path_factory.mktemp("platform"), request.param) as running:
        yield running
