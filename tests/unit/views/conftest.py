from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.views.store.sqlite import ViewStore
from tests.support.closing import closing_instances


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    with closing_instances(ViewStore):
        yield
