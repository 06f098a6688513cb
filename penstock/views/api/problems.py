"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from starlette.responses import Response

from penstock.errors import PenstockError, Wait
from penstock.views.api.query import BadQuery
from penstock.views.cluster.protocol import PeerUnavailable
from penstock.views.store.sqlite import QueryTimeout, StoreClosed, StoreDamaged, StoreNotWritable

TYPE = "application/problem+json"
MAX_LENGTH = 1000


class Missing(PenstockError):
    """There is no such view, or no such key in it."""


class NotReady(PenstockError):
    """The view cannot be answered correctly now."""


class Misdirected(PenstockError):
    """A request that was forwarded to an instance that cannot answer it."""


STATUS: dict[type[PenstockError], int] = {
    Missing: 404,
    BadQuery: 400,
    Misdirected: 421,
    QueryTimeout: 504,
    Wait: 503,
    NotReady: 503,
    PeerUnavailable: 503,
    StoreClosed: 503,
    StoreDamaged: 503,
    StoreNotWritable: 503,
}


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return Response(body(status, detail), status, {**(headers or {}), **status_headers(status)}, TYPE)


def body(status: int, detail: str) -> bytes:
    text = detail.encode(errors="replace").decode()[:MAX_LENGTH]
    return orjson.dumps({"type": "about:blank", "title": phrase(status), "status": status, "detail": text})


def phrase(status: int) -> str:
    return HTTPStatus(status).phrase


def status_headers(status: int) -> dict[str, str]:
    """Headers that go with a status."""
    match status:
        case 503:
            return {"Retry-After": "1"}
        case 401:
            return {"WWW-Authenticate": "Bearer"}
    return {}


def error_response(e: PenstockError, headers: dict[str, str] | None = None) -> Response:
    return problem(STATUS.get(type(e), 500), str(e), headers)


def peer_error(status: int, content: bytes) -> PenstockError:
    """What another instance says against a request that was sent on."""
    try:
        detail = str(orjson.loads(content)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"status {status}"
    if status == 504:
        return QueryTimeout(detail)
    return BadQuery(detail) if status == 400 else NotReady(detail)
