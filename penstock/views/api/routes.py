"""The views by REST. Every route is `async` and short: queries go to the pool, other instances are awaited.

No route declares a body, as FastAPI would read that without a limit: `asked` does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException

from penstock.errors import PenstockError
from penstock.views.api import openapi, problems, query
from penstock.views.api.freshness import AnswerFreshness, RequestContext
from penstock.views.api.query import BadQuery, Counts, KeyLookup, PartialCounts, PartialSearch, Search
from penstock.views.api.service import ViewResponse, ViewsService
from penstock.views.cluster.peers import PeerClient, PeerResponse
from penstock.views.cluster.protocol import DEADLINE, FORWARDED
from penstock.web.json_body import read_json, refusal

M = TypeVar("M", bound=BaseModel)
MaxAge = Annotated[int | None, Query(ge=0, le=1 << 40, description="refuse what is older")]

# Seconds that a request has, and that it may ask for.
TIMEOUT, MAX_TIMEOUT = 5.0, 30.0
BODY_LIMIT, BODY_TIMEOUT = 256 * 1024, 10.0
# Of a page by criteria, what is no criterion.
OF_PAGES = ("limit", "cursor", "order", "descending", "max_age_ms")
DESCRIPTION = """Compacted topics as the latest value of each key. A request is answered by the instance that owns the
partition, or is sent on to it, once. Each answer says how fresh it is: `Penstock-Lag`, `Penstock-Age-Ms`,
`Penstock-Stale`, and `freshness` in the body. A request says how long it may take by `Penstock-Deadline-Ms`."""


def request_context(request: Request, max_age_ms: int | None = None) -> RequestContext:
    header, timeout = request.headers.get(DEADLINE), TIMEOUT
    if header is not None:
        if (
            not (header.isascii() and header.isdigit() and len(header) < 10)
            or not 0 < int(header) <= MAX_TIMEOUT * 1000
        ):
            raise BadQuery(
                f"{DEADLINE} is no such time", got=header[:40], hint=f"send 1 to {MAX_TIMEOUT * 1000:.0f} milliseconds"
            )
        timeout = int(header) / 1000
    return RequestContext(time.monotonic() + timeout, FORWARDED in request.headers, max_age_ms)


async def reject_unknown_parameters(request: Request) -> None:
    """Raise BadQuery for a parameter that the route does not know, such as a misspelled `max_age_ms`."""
    # As a plain function it would run in a thread of its own for each request.
    name = request.scope["route"].name
    if name != "rows" and name not in openapi.OPEN_TO_ALL:
        parameters = {"max_age_ms"} if name in openapi.OF_VALUES else set[str]()
        if unknown := sorted(request.query_params.keys() - parameters):
            hint = f"leave it out; known here: {', '.join(parameters) or 'none'}"
            raise BadQuery("there is no such parameter", got=unknown[0][:200], hint=hint)


def freshness_headers(fresh: AnswerFreshness) -> dict[str, str]:
    return {
        "Penstock-Lag": str(fresh.lag),
        "Penstock-Age-Ms": str(fresh.age_ms),
        "Penstock-Stale": "true" if fresh.stale else "false",
    }


def to_response(response: ViewResponse | PeerResponse) -> Response:
    if isinstance(response, PeerResponse):
        headers = {name: value for name, value in response.headers.items() if name.startswith("penstock-")}
        return Response(response.content, response.status, headers, response.headers.get("content-type"))
    headers = freshness_headers(response.fresh)
    if response.status == 404:
        return problems.error_response(
            problems.Missing("there is no such key", got=response.body["key"][:200]), headers
        )
    return Response(orjson.dumps(response.body), response.status, headers, "application/json")


def key_in_path(request: Request) -> str:
    """The key in the path, exactly as it was sent."""
    raw: bytes = request.scope["raw_path"]
    try:
        key = unquote_to_bytes(raw.partition(b"/rows/")[2]).decode()
    except UnicodeDecodeError as e:
        raise BadQuery("the key is no UTF-8", got=str(e)) from e
    if len(key) > query.MAX_TEXT:
        raise HTTPException(414, f"a key that is asked for has at most {query.MAX_TEXT} characters")
    return key


def create_app(service: ViewsService, token: str) -> FastAPI:
    """The app of an instance."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.peers = PeerClient(service.directory, token)
        yield
        await service.peers.close()

    app = FastAPI(
        title="Penstock views", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=life,
        openapi_url="/v1/openapi.json", generate_unique_id_function=lambda route: route.name,
        dependencies=[Depends(reject_unknown_parameters)],
    )  # fmt: skip
    app.openapi = lambda: openapi.document(app, token, TIMEOUT, MAX_TIMEOUT)  # type: ignore[method-assign]

    async def body_of(request: Request, model: type[M]) -> M:
        # A forwarded request is larger than the original: it has the partitions too.
        limit = BODY_LIMIT * (4 if FORWARDED in request.headers else 1)
        return await read_json(request, model, limit, BODY_TIMEOUT)

    @app.get("/v1/views")
    async def views() -> Response:
        """All views, as this instance knows them."""
        statistics = [service.statistics(name) for name in sorted(service.runs)]
        return Response(orjson.dumps({"views": statistics}), media_type="application/json")

    @app.get("/v1/views/{view}")
    async def view(view: str) -> Response:
        """Statistics of a view: keys, bytes, partitions with offsets, lag and age, and who owns which."""
        return Response(orjson.dumps(service.statistics(view)), media_type="application/json")

    @app.get("/v1/views/{view}/rows/{key:path}")
    async def row(request: Request, view: str, key: str, max_age_ms: MaxAge = None) -> Response:  # noqa: ARG001
        """The latest value of a key."""
        return to_response(await service.get(view, key_in_path(request), request_context(request, max_age_ms)))

    @app.post("/v1/views/{view}/batch")
    async def batch(request: Request, view: str, max_age_ms: MaxAge = None) -> Response:
        """The latest values of several keys."""
        caller = request_context(request, max_age_ms)
        return to_response(await service.batch(view, await body_of(request, KeyLookup), caller))

    @app.get("/v1/views/{view}/rows")
    async def rows(
        request: Request,
        view: str,
        order: Annotated[str, Query(max_length=query.MAX_TEXT)] = query.KEY,
        descending: bool = False,
        limit: Annotated[int, Query(ge=1, le=query.ROWS)] = 100,
        cursor: str | None = None,
        max_age_ms: MaxAge = None,
    ) -> Response:
        """Rows by criteria, a page: `field=value`, `map.entry=value`, `field.ge=value`; one field again: or."""
        criteria = [(name, value) for name, value in request.query_params.multi_items() if name not in OF_PAGES]
        if len(criteria) > query.VALUES:
            raise BadQuery("too many criteria", got=len(criteria), hint=f"send {query.VALUES} at most")
        where = query.from_query_string(service.view(view).layout, criteria)
        if len(where) > query.TERMS:
            raise BadQuery("too many criteria", got=len(where), hint=f"ask by {query.TERMS} fields and entries at most")
        try:
            search = Search(where=where, order=order, descending=descending, limit=limit, cursor=cursor)
        except ValidationError as e:
            raise refusal(e) from None
        return to_response(await service.search(view, search, request_context(request, max_age_ms)))

    @app.post("/v1/views/{view}/search")
    async def search(request: Request, view: str, max_age_ms: MaxAge = None) -> Response:
        """Rows by criteria, a page: ordered by key or by a field."""
        caller = request_context(request, max_age_ms)
        model = PartialSearch if caller.forwarded else Search
        return to_response(await service.search(view, await body_of(request, model), caller))

    @app.post("/v1/views/{view}/counts")
    async def counts(request: Request, view: str, max_age_ms: MaxAge = None) -> Response:
        """How many rows there are, by the values of fields; `at` is the moment of it, epoch ms."""
        caller = request_context(request, max_age_ms)
        model = PartialCounts if caller.forwarded else Counts
        return to_response(await service.counts(view, await body_of(request, model), caller))

    @app.get("/v1/live")
    async def live() -> Response:
        """Fails when a thread that queries is stuck; without a token."""
        if service.stuck:
            return problems.problem(503, "a query does not end: restart the instance")
        return Response(b'{"live":true}', media_type="application/json")

    @app.get("/v1/ready")
    async def ready() -> Response:
        """Fails as long as a view of this instance is being loaded, or none can be served; without a token."""
        loaded, refused, waiting = service.ready
        if waiting or not loaded:
            reasons = [f"{name}: {why} (see /v1/views/{name})" for name, why in {**waiting, **refused}.items()]
            return problems.problem(503, f"not ready: {'; '.join(reasons) or 'the views are being opened'}")
        body = {"ready": True, "views": loaded, "refused": refused}
        return Response(orjson.dumps(body), media_type="application/json")

    @app.exception_handler(PenstockError)
    async def penstock_error(_: Request, e: PenstockError) -> Response:
        return problems.error_response(e)

    @app.exception_handler(AnyHTTPException)
    async def http_error(_: Request, e: AnyHTTPException) -> Response:
        return problems.problem(e.status_code, str(e.detail), dict(e.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, e: RequestValidationError) -> Response:
        # A name that was sent may be long, and the reason is behind it.
        reasons = [f"{'.'.join(str(part)[:80] for part in err['loc'])}: {err['msg']}" for err in e.errors()[:10]]
        return problems.problem(422, "; ".join(reasons))

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, __: Exception) -> Response:
        return problems.problem(500, "this should not have happened; see the instance's log")

    return app
