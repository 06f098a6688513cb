"""An embedded object store in a folder, and connections to it that fail."""

from __future__ import annotations

import base64
import hmac
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pytest
from pyarrow import fs

from penstock.archive.hour_closer import HourCloser, TopicEnds
from penstock.archive.records import SCHEMA
from penstock.archive.stream import output_of
from penstock.archive.table import ArchiveTable
from penstock.archive.writer import ArchiveWriter
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import Wait
from penstock.host.ports import free_port
from penstock.model.archive import Archive
from penstock.model.output import CommitMarker
from penstock.object_store.bucket import Bucket, ObjectInfo
from penstock.object_store.endpoint import ACCESS_KEY, Endpoint
from penstock.settings import settings
from tests.support.http_client import HTTP

T = TypeVar("T")
looks = itertools.count()
Cut = Literal["before", "after"]


@contextmanager
def server(folder: Path) -> Iterator[S3Server]:
    with S3Server(folder, port=free_port()) as store:
        yield store


def endpoint_of(store: S3Server) -> Endpoint:
    """The endpoint of an embedded object store."""
    return Endpoint(store.url, "us-east-1", ACCESS_KEY, store.secret_key, True)


def created(endpoint: Endpoint, bucket: str, key: str, data: bytes) -> bool:
    """Create an object; False if it exists."""
    at = formatdate(usegmt=True)
    signed = hmac.new(endpoint.secret_key.encode(), f"PUT\n\n\n{at}\n/{bucket}/{key}".encode(), "sha1").digest()
    head = {
        "Date": at, "If-None-Match": "*",
        "Authorization": f"AWS {endpoint.access_key}:{base64.b64encode(signed).decode()}",
    }  # fmt: skip
    answer = HTTP.put(f"{endpoint.url}/{bucket}/{key}", content=data, headers=head)
    if answer.status_code == HTTPStatus.PRECONDITION_FAILED:
        return False
    answer.raise_for_status()
    return True


def use_store(patch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    """Let the settings say where an object store is; tables are in a file, unless a control database is set."""
    for name, value in {
        "URL": endpoint.url,
        "ACCESS_KEY": endpoint.access_key,
        "SECRET_KEY": endpoint.secret_key,
    }.items():
        patch.setenv(f"PENSTOCK_S3_{name}", value)
    patch.setenv("PENSTOCK_S3_MAKE_BUCKETS", "1")
    if "PENSTOCK_CONTROL_URL" not in os.environ:
        patch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{settings().home}/catalog.db")
    settings.cache_clear()


def write_to_archive(
    archive: Archive,
    endpoint: Endpoint,
    records: Sequence[Mapping[str, Any]],
    *,
    close: bool = True,
    topic_id: str = "",
    starts: Mapping[int, int] | None = None,
) -> None:
    """Write records of all partitions to an archive and close its hours. starts: the first offsets of their batch."""
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, endpoint)
        _write_to_archive(archive, records, topic_id, starts, close=close)


def _write_to_archive(
    archive: Archive,
    records: Sequence[Mapping[str, Any]],
    topic_id: str,
    starts: Mapping[int, int] | None,
    *,
    close: bool,
) -> None:
    topic, to = archive.reads[0].name, output_of(archive)
    writer = ArchiveWriter(to, ArchiveTable.create(to))
    ends: dict[int, int] = {}
    for r in records:
        ends[r["partition"]] = max(ends.get(r["partition"], 0), r["offset"] + 1)
    rows = pa.Table.from_pylist(list(map(dict, records)), SCHEMA)
    ids = {topic: topic_id} if topic_id else {}
    writer.write(
        {to.name: rows}, CommitMarker("query", 0, {topic: ends}, ids, start_offsets={topic: starts} if starts else {})
    )
    if close:
        # Later than any hour that was closed by now.
        late = datetime(2027, 1, 1, tzinfo=UTC).timestamp() + 10_000 * next(looks)
        asked: TopicEnds = ({}, {(topic, p): end for p, end in ends.items()})
        HourCloser(writer, to, lambda _: asked, lambda: late).close_due_hours()


Answer = Literal["pass", "500", "slow", "expired"]
ERROR = """<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>told to</Message></Error>"""


class Between:
    """A way to a real store that answers a read as `judge` says of its path, instead of the store."""

    def __init__(self, endpoint: Endpoint, judge: Callable[[str], Answer]) -> None:
        host = endpoint.url.removeprefix("http://")
        ended = self._ended = Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answer = judge(self.path)
                if answer == "pass":
                    self._passed()
                elif answer == "slow":
                    ended.wait(60)
                    self.close_connection = True
                else:
                    code, name = (500, "InternalError") if answer == "500" else (400, "ExpiredToken")
                    self._answered(code, {"Content-Type": "application/xml"}, ERROR.format(name).encode())

            def do_HEAD(self) -> None:
                self.do_GET()

            def _passed(self) -> None:
                to = HTTPConnection(host, timeout=60)
                # Whose host is signed.
                to.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    to.putheader(name, value)
                to.endheaders()
                found = to.getresponse()
                left = ("connection", "transfer-encoding", "content-length")
                kept = {name: value for name, value in found.getheaders() if name.lower() not in left}
                self._answered(found.status, kept, found.read(), found.getheader("Content-Length"))
                to.close()

            def _answered(
                self, status: int, headers: Mapping[str, str], body: bytes, length: str | None = None
            ) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                # Of what is only asked for the length is said, and nothing follows.
                self.send_header("Content-Length", (length or "0") if self.command == "HEAD" else str(len(body)))
                # Who waited too long has left.
                with suppress(ConnectionError):
                    self.end_headers()
                    self.wfile.write(body if self.command != "HEAD" else b"")

            def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.endpoint = replace(endpoint, url=f"http://127.0.0.1:{self._server.server_address[1]}")

    def __enter__(self) -> Between:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class LocalBucket(Bucket):
    """A bucket in a local folder, for tests of what an archive makes of objects: it needs no server."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        super().__init__(Endpoint("http://localhost:1", "us-east-1", "", "", True), "lake", prefix)
        self._fs = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())  # type: ignore[assignment]

    @contextmanager
    def open_output(self, key: str) -> Iterator[Any]:
        self._make_folder_of(key)
        with super().open_output(key) as out:
            yield out

    def copy(self, key: str, to: str) -> None:
        self._make_folder_of(to)
        super().copy(key, to)

    def _make_folder_of(self, key: str) -> None:
        self._fs.create_dir(f"{self._root}/{key}".rpartition("/")[0], recursive=True)


class Calls:
    """Counts calls of a store and a catalog, which fail for good from the n-th on: before it does what was requested,
    or after."""

    def __init__(self, at: int, effect: Cut) -> None:
        self.count, self._at, self._effect = 0, at, effect

    def call(self, what: Callable[[], T]) -> T:
        self.count += 1
        if self.count > self._at or (self.count == self._at and self._effect == "before"):
            raise Wait("cut off", seconds=0.0)
        done = what()
        if self.count == self._at:
            raise Wait("cut off", seconds=0.0)
        return done


class Failing(Bucket):
    """A bucket whose calls are counted."""

    def __init__(self, bucket: Bucket, calls: Calls) -> None:
        vars(self).update(vars(bucket))
        self._calls, self._bucket = calls, bucket

    def put(self, key: str, data: bytes) -> None:
        self._calls.call(lambda: self._bucket.put(key, data))

    def input_stream(self, key: str) -> Any:
        return self._calls.call(lambda: self._bucket.input_stream(key))

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        return self._calls.call(lambda: self._bucket.list_objects(folder))

    def delete(self, key: str) -> None:
        self._calls.call(lambda: self._bucket.delete(key))

    @contextmanager
    def open_output(self, key: str) -> Iterator[Any]:
        self._calls.call(lambda: None)
        with self._bucket.open_output(key) as out:
            yield out
