"""The embedded object store: it keeps what it was given, and knows who may ask."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from penstock.devstack.servers.s3 import S3Server
from penstock.errors import SinkError, Wait
from penstock.object_store import bucket
from penstock.object_store.bucket import Bucket, ObjectNotFound
from penstock.object_store.endpoint import ACCESS_KEY, Endpoint, find_endpoint
from penstock.settings import settings
from tests.support import s3_store
from tests.support.s3_store import endpoint_of
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_store.server(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.mark.long
def test_objects_are_kept_through_a_crash(part: S3Server) -> None:
    store = Bucket(endpoint_of(part), "kept", "some/where")
    store.ensure_exists()
    store.put("date=1/a", b"one")
    store.put("date=1/large", b"x" * 12_000_000)
    part.kill()
    part.restart()
    assert [(o.key, o.size) for o in store.list_objects("date=1")] == [("date=1/a", 3), ("date=1/large", 12_000_000)]
    assert store.get("date=1/a") == b"one"
    store.delete("date=1/a")
    store.delete("date=1/a")
    assert [o.key for o in store.list_objects("date=1")] == ["date=1/large"]
    with pytest.raises(ObjectNotFound, match="s3://kept/some/where/date=1/a"):
        store.get("date=1/a")


def test_an_object_that_was_being_written_when_the_server_died_is_not_listed(part: S3Server) -> None:
    store = Bucket(endpoint_of(part), "torn")
    store.ensure_exists()
    store.put("states/1.json.gz", b"one")
    (part.folder / "data" / "torn" / "states" / f"2.json.gz-{uuid.uuid4()}").write_bytes(b"")
    assert [o.key for o in store.list_objects("states")] == ["states/1.json.gz"]


def test_it_listens_on_loopback_alone(part: S3Server) -> None:
    running = part.running()
    assert running is not None
    held = [c for c in psutil.net_connections("tcp") if c.pid == running.pid and c.status == psutil.CONN_LISTEN]
    found = {c.laddr.ip for c in held if c.laddr}
    assert found <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert found


@pytest.mark.parametrize("wrong", [{"secret_key": "wrong"}, {"access_key": "nobody"}])
def test_who_does_not_know_the_secret_is_refused(part: S3Server, wrong: dict[str, Any]) -> None:
    mine = Bucket(endpoint_of(part), "closed")
    mine.ensure_exists()
    mine.put("a", b"one")
    store = Bucket(replace(endpoint_of(part), **wrong), "closed")
    for call in (
        lambda: store.put("b", b"x"),
        lambda: store.get("a"),
        lambda: store.list_objects("x"),
        store.ensure_exists,
    ):
        with pytest.raises(SinkError, match=r"refuses the access key for s3://closed.*PENSTOCK_S3_SECRET_KEY"):
            call()
    assert [o.key for o in mine.list_objects("")] == ["a"]


def test_a_bucket_is_made_only_where_that_is_allowed(part: S3Server) -> None:
    store = Bucket(replace(endpoint_of(part), create_buckets=False), "missing")
    for call in (store.ensure_exists, lambda: store.put("a", b"x")):
        with pytest.raises(SinkError, match=r"there is no bucket missing.*PENSTOCK_S3_MAKE_BUCKETS=1"):
            call()


def test_a_paused_or_stopped_store_raises_wait(part: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "REQUEST_TIMEOUT", 2.0)
    store = Bucket(endpoint_of(part), "away")
    store.ensure_exists()
    running = part.running()
    assert running is not None
    part.pause()
    wait_until(lambda: running.status() == psutil.STATUS_STOPPED)
    try:
        with pytest.raises(Wait, match="s3://away/a does not answer"):
            store.put("a", b"x")
    finally:
        part.resume()
    part.stop()
    with pytest.raises(Wait, match="s3://away/a does not answer"):
        store.get("a")
    part.restart()
    store.put("a", b"y")
    assert store.get("a") == b"y"


def test_drivers_find_it_by_its_record(part: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(part.home))
    settings.cache_clear()
    assert find_endpoint() == Endpoint(part.url, "us-east-1", ACCESS_KEY, part.secret_key, True)
    assert part.secret_key not in repr(find_endpoint())
    assert (part.home / "s3.secret").stat().st_mode & 0o077 == 0
    assert (part.folder / "s3proxy.conf").stat().st_mode & 0o077 == 0
