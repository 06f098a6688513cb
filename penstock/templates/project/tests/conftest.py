"""Fixtures of all tests."""

import pytest

from penstock.testing import spark_session


@pytest.fixture(scope="session")
def spark():
    with spark_session() as session:
        yield session
