"""A MongoDB of one's own: the embedded server, or a real one that PENSTOCK_TEST_MONGODB_URL names; rows for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from penstock.devstack.servers.mongodb import MongoDBServer as Server
from penstock.errors import Refused
from penstock.host.ports import free_port
from penstock.model.output import NO_COMMIT
from penstock.sinks.mongodb.config import MongoDB
from penstock.sinks.mongodb.writer import MongoWriter

VARIABLE = "PENSTOCK_TEST_MONGODB_URL"
AT = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)
DOC = pa.struct([("n", pa.int64())])

Opened = Callable[..., tuple[MongoWriter, MongoDB]]


@dataclass(frozen=True)
class Row:
    """doc: None for a tombstone; refused: why the transform says that it is wrong."""

    id: str | bytes | None
    version: int | None = 1
    doc: Mapping[str, Any] | None = None
    at: datetime | None = AT
    refused: bytes | None = None
    deleted: bool | None = None


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    with Server(folder, port=free_port()) as part:
        yield part


def given() -> str:
    """The URL of a real one, or empty."""
    return os.environ.get(VARIABLE, "")


@contextmanager
def store(folder: Path) -> Iterator[str]:
    """The URL of a server: of the real one if there is one, else of the embedded one."""
    if url := given():
        yield url
        return
    with server(folder) as part:
        yield part.url


@contextmanager
def fresh(url: str) -> Iterator[Database[Any]]:
    """An empty database of a server, removed afterwards."""
    with MongoClient[Any](url, tz_aware=True) as client:
        yield client[name := f"penstock-{uuid4().hex[:12]}"]
        client.drop_database(name)


@contextmanager
def opening(url: str, database: Database[Any]) -> Iterator[Opened]:
    """Makes a writer into collection `c` and its output. options: of the client; others are of the output."""
    made: list[MongoWriter] = []

    def make(options: dict[str, Any] | None = None, **declared: Any) -> tuple[MongoWriter, MongoDB]:
        output = MongoDB(**({"sink": "s", "database": database.name, "collection": "c"} | declared))
        made.append(MongoWriter(url, output, **(options or {})))
        return made[-1], output

    yield make
    for writer in made:
        writer.close()


def there(database: Database[Any], collection: str = "c") -> dict[str, Any]:
    """Documents by id, without their version."""
    return {d.pop("_id"): d for d in database[collection].find({}, {"_v": 0})}


def embedded() -> None:
    """Skip the test where a real server is used, which is not ours to stop."""
    if given():
        pytest.skip(f"stops the server; {VARIABLE} names another's")


def table(*rows: Row, kind: pa.DataType = DOC) -> pa.Table:
    """Rows as a writer gets them."""
    return pa.table(
        {
            "id": pa.array([r.id.encode() if isinstance(r.id, str) else r.id for r in rows], pa.binary()),
            "version": pa.array([r.version for r in rows], pa.int64()),
            "deleted": pa.array([r.doc is None if r.deleted is None else r.deleted for r in rows], pa.bool_()),
            "at": pa.array([r.at for r in rows], pa.timestamp("us", "UTC")),
            "refused": pa.array([r.refused for r in rows], pa.binary()),
            "topic": pa.array(["t"] * len(rows), pa.string()),
            "partition": pa.array([0] * len(rows), pa.int32()),
            "offset": pa.array(range(len(rows)), pa.int64()),
            "doc": pa.array([r.doc for r in rows], kind),
        }
    )


def write(writer: MongoWriter, output: MongoDB, *rows: Row, kind: pa.DataType = DOC) -> int:
    return writer.write({output.name: table(*rows, kind=kind)}, NO_COMMIT)


def refused(writer: MongoWriter, output: MongoDB, *rows: Row, kind: pa.DataType = DOC) -> dict[int, str]:
    """Why rows of a batch are refused, by number; the batch must have some."""
    with pytest.raises(Refused) as e:
        write(writer, output, *rows, kind=kind)
    assert set(e.value.rows) == {output.name}
    assert e.value.written is not None, "all others are written, and need not be given again"
    return dict(e.value.rows[output.name])
