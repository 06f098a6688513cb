"""The tutorial's files, as it says to write them, do what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.settings import PROJECT
from penstock.testing import Record, create, read, running, send
from tests.support.caches import unload_jobs
from tests.support.modules import module

pytestmark = pytest.mark.integration

FILE = re.compile(r"`([\w/]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MINUTE = 1_699_999_980_000


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with the files of the tutorial."""
    for name, text in FILE.findall((PROJECT / "docs" / "tutorial.md").read_text()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "jobs" / "orders" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    unload_jobs()
    yield tmp_path
    unload_jobs()


def test_the_test_of_the_tutorial_passes(project: Path, spark: SparkSession) -> None:
    module(project / "tests" / "test_orders.py").test_orders_of_a_minute_are_summed(spark)


def test_the_stream_of_the_tutorial_emits_its_row(
    project: Path, spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    stream = catalog.load(project).stream("order-minutes")
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in stream.topics()))
    orders = [(MINUTE + 20_000, 2.5), (MINUTE + 30_000, 4.0), (MINUTE + 300_000, 1.0)]
    text = '{{"shop":"north","amount":{},"at":{}}}'
    send(bootstrap, [Record("orders", None, text.format(amount, at), 0, timestamp=at) for at, amount in orders])
    with running(stream, spark, bootstrap, tmp_path / "checkpoints") as run:
        run.process_all_available()
        rows = read(bootstrap, "order-minutes")
    assert [(r.key, r.value) for r in rows] == [('{"shop":"north","minute":1699999980000}', "6.5")]
