from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.capture.source.base import SourceDatabase
from tests.support.closing import closing_instances


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    with closing_instances(SourceDatabase):
        yield
