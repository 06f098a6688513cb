"""What the routes of the operator page share: the present moment, who looks at it, and limits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from threading import BoundedSemaphore
from typing import Annotated, Any

import orjson
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, HTTPException, Query, Request, Response
from pydantic import StringConstraints

from penstock.airflow.permissions import has_permission, may_operate, may_release
from penstock.control import connect
from penstock.monitoring.dashboard.declarations import Declarations, KnownDeclarations, read_declarations
from penstock.monitoring.dashboard.page_data import PageData, read_page_data
from penstock.monitoring.dashboard.shared_result import SharedResult
from penstock.monitoring.dashboard.states import StateLimits
from penstock.settings import settings
from penstock.supervision.code_snapshot import disk_digest

# Seconds: how long a request waits for others, and the hash of the files is cached.
BUSY_TIMEOUT, HASH_EVERY = 5.0, 10.0
# Requests of a kind at a time, as each keeps a thread of the api-server for seconds: reads of dead letters and of code,
# searches in views, JVMs for a command.
letter_reads, code_reads, searches, jvm_runs = (BoundedSemaphore(n) for n in (2, 2, 4, 1))

ShortName = Annotated[str, StringConstraints(max_length=120)]
Name = Annotated[str, Query(max_length=120)]
SearchText = Annotated[str, Query(max_length=200)]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]

_known = KnownDeclarations()


def _read() -> PageData:
    disk = disk_hash()
    return read_page_data(connect(), StateLimits.of(settings()), _known.newest(disk), disk)


page_data = SharedResult(_read, keep_failures=False)


@dataclass(frozen=True)
class Look:
    """The present moment, as somebody looks at it."""

    data: PageData
    viewer: Mapping[str, Any]

    def answer(self, content: Mapping[str, Any]) -> Response:
        """An answer with what every one has. The standard library would take seconds for thousands of streams."""
        # Column names of SQLAlchemy's rows are no plain str.
        body = orjson.dumps({**self.data.common, "viewer": self.viewer, **content}, option=orjson.OPT_NON_STR_KEYS)
        return Response(body, media_type="application/json")


def look(request: Request, user: GetUserDep) -> Look:
    """What a route answers from; ControlError if the control database does not answer."""
    viewer = {
        "name": user.get_name(),
        "may_operate": has_permission(may_operate, request, user),
        "may_release": has_permission(may_release, request, user),
    }
    return Look(page_data.read(), viewer)


PageLook = Annotated[Look, Depends(look)]


def disk_hash() -> str:
    """The hash of the files on disk, at most HASH_EVERY seconds old."""
    return _read_disk_hash(time.monotonic() // HASH_EVERY)


def read_project() -> Declarations:
    """What is declared on the disk at this moment; DeclarationError if it cannot be read."""
    return read_declarations(disk_digest(settings().project))


@lru_cache(maxsize=1)
def _read_disk_hash(_: float) -> str:
    return disk_digest(settings().project)


@contextmanager
def limited(semaphore: BoundedSemaphore) -> Iterator[None]:
    """Do one of a few things that may be done at a time; HTTPException 503 if others take too long."""
    if not semaphore.acquire(timeout=BUSY_TIMEOUT):
        raise HTTPException(503, "other requests of this kind are in progress; try again")
    try:
        yield
    finally:
        semaphore.release()
