"""A release creates the topics of its app that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog import partial_catalog
from penstock.control import Actor, Control
from penstock.devstack.servers.kafka import Broker
from penstock.errors import ReleaseRefused
from penstock.kafka.admin import admin, partition_counts, topic_configs
from penstock.model.topic import COMMITS, Topic
from penstock.settings import settings
from penstock.supervision import release
from penstock.supervision.replacement_options import replacement_options
from penstock.testing.topics import create
from tests.chaos.projects import other_project

pytestmark = pytest.mark.integration

STREAM = """STREAM INTO released-orders PARTITIONS 2 RETENTION 1 DAY
READ placed-orders AS JSON (id BIGINT NOT NULL, timestamp TIMESTAMP)
APP shop
AS SELECT id FROM `placed-orders`
"""


@pytest.fixture
def project(tmp_path: Path, fresh_broker: Broker) -> Iterator[Path]:
    """A project with one stream in SQL."""
    folder = tmp_path / "sql" / "streams"
    folder.mkdir(parents=True)
    (folder / "orders.sql").write_text(STREAM)
    with other_project(
        tmp_path, {"PENSTOCK_HOME": tmp_path / "home", "PENSTOCK_KAFKA_BOOTSTRAP": fresh_broker.bootstrap}
    ):
        yield tmp_path


def test_missing_topics_are_created_and_others_stay(
    control: Control, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = release._run_check
    # Spark's plan is of other tests.
    monkeypatch.setattr(
        release, "_run_check", lambda c, *of: real(c, *of) if c[0] == "penstock.catalog" else {"refused": []}
    )
    bootstrap = settings().bootstrap
    create(bootstrap, Topic("placed-orders", partitions=1))
    partial_catalog.cache_clear()
    control.sync(partial_catalog()[0])
    assert release.release(control, "shop", Actor("me", "cli")) == 1
    counts = partition_counts(admin(bootstrap), bootstrap)
    wanted = {
        "placed-orders": 1,
        "placed-orders-dead-letter": 1,
        "released-orders": 2,
        COMMITS.name: COMMITS.partitions,
    }
    assert {name: count for name, count in counts.items() if not name.startswith("__")} == wanted
    assert topic_configs(["released-orders"], bootstrap)["released-orders"]["retention.ms"] == "86400000"
    # Of a replacement, too: its cut lets the next driver of the app run the same code.
    changed = STREAM.replace("INTO released-orders PARTITIONS 2", "INTO changed-orders PARTITIONS 3")
    (project / "sql" / "streams" / "orders.sql").write_text(changed)
    options = replacement_options()
    assert not release.start_replacement(control, "shop", "orders", Actor("me", "cli"), options, dry_run=True)
    assert "changed-orders" not in partition_counts(admin(bootstrap), bootstrap)
    assert release.start_replacement(control, "shop", "orders", Actor("me", "cli"), options)
    assert partition_counts(admin(bootstrap), bootstrap)["changed-orders"] == 3


@pytest.mark.usefixtures("project")
def test_a_topic_that_the_broker_refuses_refuses_the_release() -> None:
    with pytest.raises(ReleaseRefused, match=r"topics of app shop cannot be created: topic odd .*; hint: correct"):
        release._create_topics("shop", [Topic("odd", config={"cleanup.policy": "odd"})])
