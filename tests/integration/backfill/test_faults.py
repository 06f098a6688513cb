"""Backfills of damaged archives, and of stores that fail in the middle.

Each error names bucket, key and what to do; nothing is written; once the cause is repaired the same run succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive.stream import output_of
from penstock.archive.table import ArchiveTable
from penstock.backfill import retry
from penstock.backfill.progress import BackfillStatus
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import InputNotReady, SinkError, Wait
from penstock.object_store import bucket as stores
from penstock.object_store.endpoint import Endpoint
from penstock.streams import Archive
from penstock.testing import create
from tests.support.archive_backfills import AGAIN, ALL, PER_PART, again, do, event, filled, job, places
from tests.support.s3_store import Answer, Between, endpoint_of, use_store, write_to_archive
from tests.support.small_archive import HOUR, parquet_bytes

pytestmark = pytest.mark.integration


@pytest.fixture
def endpoint(object_store: S3Server) -> Endpoint:
    return endpoint_of(object_store)


@pytest.fixture
def kept(
    endpoint: Endpoint, home: Path, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Archive:
    assert home.exists()
    create(fresh_broker.bootstrap, AGAIN)
    return filled(endpoint, monkeypatch, str(tmp_path))


def written_as(table: ArchiveTable, change: Callable[[pa.Table], pa.Table]) -> None:
    key = table.files_of_hour(HOUR)[0].key
    with table.bucket.open_input(key) as source:
        rows = pq.read_table(source)
    table.bucket.put(key, parquet_bytes(change(rows)))


def cut(table: ArchiveTable) -> None:
    key = table.files_of_hour(HOUR)[0].key
    table.bucket.put(key, table.bucket.get(key)[:-20])


def strange(table: ArchiveTable) -> None:
    written_as(table, lambda _: pa.table({"n": [1]}))


def lost_a_column(table: ArchiveTable) -> None:
    written_as(table, lambda rows: rows.drop_columns(["headers"]))


def fewer(table: ArchiveTable) -> None:
    written_as(table, lambda rows: rows.slice(1))


def vanished(table: ArchiveTable) -> None:
    table.bucket.delete(table.files_of_hour(HOUR)[0].key)


DAMAGES: dict[Callable[[ArchiveTable], None], str] = {
    cut: r"cannot be read: s3://lake/.*\.parquet",
    strange: r"\.parquet.*the columns are not those of an archive: topic",
    lost_a_column: r"\.parquet.*the columns are not those of an archive: headers missing",
    fewer: r"is not the one that was written: s3://lake/.*\.parquet",
    vanished: r"a file of the archive is missing: s3://lake/.*\.parquet",
}


def test_a_damaged_archive_is_refused_and_nothing_is_written(kept: Archive, fresh_broker: Broker) -> None:
    table = ArchiveTable.find(output_of(kept))
    assert table
    store = table.bucket
    before = {one.key: store.get(one.key) for one in store.list_objects("data")}
    for damage, message in DAMAGES.items():
        damage(table)
        reports: list[BackfillStatus] = []
        with pytest.raises(SinkError, match=message) as e:
            do(job(again(kept)), fresh_broker, reports)
        assert "hint: restore" in str(e.value), damage.__name__
        assert reports[-1].state == "failed", damage.__name__
        assert places(fresh_broker) == [], damage.__name__
        for key, data in before.items():
            store.put(key, data)
    assert do(job(again(kept)), fresh_broker).rows == len(ALL)


def reads(wanted: Callable[[int], Answer]) -> Callable[[str], Answer]:
    """What the n-th reads of data are answered; all else passes."""
    count, one = 0, Lock()

    def judge(path: str) -> Answer:
        nonlocal count
        if ".parquet" not in path or ("hour%3D" not in path and "hour=" not in path):
            return "pass"
        # Who asks again meanwhile waits for what is done at the first question.
        with one:
            count += 1
            return wanted(count)

    return judge


@pytest.mark.parametrize("fault", ["500", "slow"])
def test_a_store_that_fails_for_a_while_is_waited_for(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch, fault: Answer
) -> None:
    monkeypatch.setattr(stores, "REQUEST_TIMEOUT", 1.0)
    told: list[BackfillStatus] = []
    # Each is asked for twice by the client itself.
    with Between(endpoint, reads(lambda n: fault if 2 < n < 6 else "pass")) as way:
        use_store(monkeypatch, way.endpoint)
        assert do(job(again(kept)), fresh_broker, told).rows == len(ALL)
    waited = [f.why for f in told if f.state == "waiting"]
    assert waited
    assert "the object store of s3://lake/" in waited[0]
    assert ".parquet does not answer" in waited[0]


def test_a_store_that_fails_for_long_ends_it_and_it_goes_on(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_TIMEOUT", 1.0)
    asked = 0

    def some(n: int) -> Answer:
        nonlocal asked
        asked = n
        return "pass" if n <= 2 else "500"

    with Between(endpoint, reads(some)) as way:
        use_store(monkeypatch, way.endpoint)
        said = r"s3://lake/.*\.parquet does not answer.*(500|INTERNAL_FAILURE).*run it again: it is resumed"
        with pytest.raises(Wait, match=said):
            do(job(again(kept)), fresh_broker)
    assert asked > 3
    use_store(monkeypatch, endpoint)
    assert places(fresh_broker) == []
    assert do(job(again(kept)), fresh_broker).rows == len(ALL)


def test_credentials_that_expire_in_the_middle(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Between(endpoint, reads(lambda n: "pass" if n <= 2 else "expired")) as way:
        use_store(monkeypatch, way.endpoint)
        said = r"refuses the access key for s3://lake/.*\.parquet.*PENSTOCK_S3_ACCESS_KEY.*may have expired"
        with pytest.raises(SinkError, match=said):
            do(job(again(kept)), fresh_broker)
    use_store(monkeypatch, endpoint)
    assert places(fresh_broker) == []
    assert do(job(again(kept)), fresh_broker).rows == len(ALL)


@pytest.mark.parametrize("joined", [False, True])
def test_an_object_that_vanishes_between_listing_and_reading(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch, *, joined: bool
) -> None:
    """Somebody removed it; or its hour was closed anew, in one file, and the old ones were tidied away."""
    table = ArchiveTable.find(output_of(kept))
    assert table
    store, old = table.bucket, table.files_of_hour(HOUR)[0].key
    before = store.get(old)

    def gone(n: int) -> Answer:
        if n == 1:
            if joined:
                write_to_archive(kept, endpoint, [event(0, PER_PART)])
                table.refresh()
                assert old not in {file.key for file in table.files_of_hour(HOUR)}
            store.delete(old)
        return "pass"

    with Between(endpoint, reads(gone)) as way:
        use_store(monkeypatch, way.endpoint)
        error, said = (
            (InputNotReady, "joined with others while it was read") if joined else (SinkError, "archive is missing")
        )
        with pytest.raises(error, match=f"{said}.*{old}"):
            do(job(again(kept)), fresh_broker)
    use_store(monkeypatch, endpoint)
    assert places(fresh_broker) == []
    if not joined:
        store.put(old, before)
    assert do(job(again(kept)), fresh_broker).rows == len(ALL) + joined
