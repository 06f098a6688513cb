"""The operator page: a FastAPI app inside Airflow's api-server, shown as a view of its UI.

Airflow does not authenticate plugin apps, so every route depends on Airflow's checks. No route declares a body, because
FastAPI would read it before the checks: `action_of` reads it after them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

import orjson
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as AnyHTTPException

from penstock.control import Actor, Control, Desired, connect
from penstock.control.repositories.captures import Captures
from penstock.errors import BrokerError, ControlError, DeclarationError, ReleaseRefused, SinkError
from penstock.host import process
from penstock.logs import printable
from penstock.model.capture import APP as CAPTURES
from penstock.monitoring.dashboard import dead_letters, sink_actions
from penstock.monitoring.dashboard.backfills import RUN_REMEDIES, RUN_STATES
from penstock.monitoring.dashboard.dashboard_json import answer
from penstock.monitoring.dashboard.fleet import Fleet, agent
from penstock.monitoring.dashboard.history import HISTORY_MS, downsample
from penstock.monitoring.dashboard.remediation import REMEDIES
from penstock.monitoring.dashboard.states import STATES, StateLimits
from penstock.settings import PROJECT, settings
from penstock.supervision import launch, release
from penstock.web import access, json_body

log = logging.getLogger(__name__)
# Each reads from the broker for seconds: more at once would leave the api-server without threads.
reading = BoundedSemaphore(2)
cataloguing = Lock()
trying = BoundedSemaphore(1)  # each starts a JVM
# The code of one app is tried at a time.
releasing = release.ReleaseQueue()
# Each waits for the views, for seconds where they are slow.
looking = BoundedSemaphore(4)

OPERATE_DAG = "operate_streams"  # who may trigger this DAG may start, stop and release here
PREFIX = "/penstock"
# Seconds that a request waits for another one to end.
CATALOG_TIMEOUT, EXCLUSIVE_TIMEOUT = 60.0, 5.0
LOG_LINES = 200
HASH_EVERY = 10.0
"""Seconds for which the hash of the files on disk is kept."""
BODY_LIMIT = 16 * 1024
BODY_TIMEOUT = 10.0
"""Seconds in which a body must be there."""
ROOT = Path(__file__).resolve().parent / "penstock_static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*")) if path.suffix in TYPES}
# In the path of every static file, so that a browser never mixes files of two releases.
VERSION = hashlib.sha256(b"".join(path.read_bytes() for path in FILES.values())).hexdigest()[:12]
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

fleet = Fleet(connect)
may_see = requires_access_view(AccessView.PLUGINS)
may_act = requires_access_dag("POST", DagAccessEntity.RUN, OPERATE_DAG)

app = FastAPI(title="Penstock", dependencies=[Depends(may_see)], docs_url=None, redoc_url=None, openapi_url=None)


def from_this_page(request: Request) -> None:
    """Refuse what another site's page could send with the user's cookie."""
    if not json_body.is_json(request):
        raise HTTPException(415, "send application/json")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="")).netloc} - {""}
    bearer = request.headers.get("authorization", "").lower().startswith("bearer ")
    foreign = origin is not None and origin.partition("://")[2] not in own
    # A browser sends at least one of both headers; a script that holds a token of its own needs neither.
    if site not in (None, "same-origin") or foreign or (origin is None and site is None and not bearer):
        log.warning("refused an action from a foreign origin: Origin %.200r, Sec-Fetch-Site %.40r", origin, site)
        raise HTTPException(403, "an action must come from this page: foreign or missing Origin")


class Action(BaseModel):
    """What the operator asks for; `note` goes into the record."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["start", "stop", "release", "poll", "reconcile", "snapshot", "continue", "replay"]
    kind: Literal["stream", "app", "capture", "sink"]
    name: str = Field(max_length=120)
    note: str = Field("", max_length=500, pattern=r"^\P{Cc}*$")


async def action_of(request: Request) -> Action:
    """The body of an action, read once its sender is known."""
    return await json_body.read_json(request, Action, BODY_LIMIT, BODY_TIMEOUT)


def own_host(given: str) -> bool:
    """Whether a Host header names this server."""
    return access.is_own_host(given, [urlsplit(conf.get("api", "base_url", fallback="")).hostname])


@app.middleware("http")
async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    if own_host(request.headers.get("host", "")):
        response = await call_next(request)
    else:
        detail = "This server is not known by that name: Airflow's setting [api] base_url says which it has."
        response = JSONResponse({"detail": detail}, 421)
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    announced = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if response.status_code >= 400 and announced:
        # Else the server would take all of a body that nobody wants, to be ready for the next request.
        response.headers["Connection"] = "close"
    return response


@app.exception_handler(ControlError)
async def control_away(_: Request, error: ControlError) -> JSONResponse:
    # The whole message names hosts and users: it belongs in the log, not before every viewer.
    log.error("%s", error)
    detail = "The control database does not answer. The streams go on by themselves; nothing can be shown or changed."
    return JSONResponse({"code": "control_away", "detail": detail}, 503)


@app.exception_handler(DeclarationError)
async def not_declared(_: Request, error: DeclarationError) -> JSONResponse:
    log.error("%s", error)
    detail = "What is declared cannot be read: `penstock catalog` says why."
    return JSONResponse({"code": "declarations", "detail": detail}, 500)


@app.exception_handler(ReleaseRefused)
async def not_released(_: Request, error: ReleaseRefused) -> JSONResponse:
    log.warning("%s", error)
    return JSONResponse({"code": "release_refused", "detail": str(error)}, 409)


@app.exception_handler(SinkError)
async def not_tried(_: Request, error: SinkError) -> JSONResponse:
    log.warning("%s", error)
    return JSONResponse({"code": "sink", "detail": str(error)}, 409)


@app.exception_handler(AnyHTTPException)
async def refused(request: Request, error: AnyHTTPException) -> Response:
    """Send a person who opened the page itself to sign in; answer everything else as it is."""
    if error.status_code == 401 and request.headers.get("sec-fetch-dest") == "document":
        home = request.scope.get("root_path", "").removesuffix(PREFIX)
        return RedirectResponse(f"{home}/api/v2/auth/login?next={quote(f'{home}/plugin/penstock')}", 303)
    return await http_exception_handler(request, error)


@app.exception_handler(RequestValidationError)
async def not_understood(_: Request, error: RequestValidationError) -> JSONResponse:
    """What is wrong, but not what was sent: that may be long, and is known to its sender."""
    said = [{"loc": [str(at)[:40] for at in e["loc"]], "msg": e["msg"][:200]} for e in error.errors()[:5]]
    return JSONResponse({"detail": said}, 422)


@app.get("/")
def page() -> HTMLResponse:
    return HTMLResponse((ROOT / "page.html").read_text().replace("{version}", VERSION))


@app.get("/static/{version}/{name:path}")
def static(version: str, name: str) -> FileResponse:
    if name not in FILES:
        raise HTTPException(404, "no such file")
    keep = "private, max-age=31536000, immutable" if version == VERSION else "no-store"
    path = FILES[name]
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": keep})


@app.get("/api/overview")
def get_overview(request: Request, user: GetUserDep) -> Response:
    """Everything but the charts; see penstock.monitoring.dashboard.overview."""
    try:
        may_act(request, user)
        allowed = True
    except HTTPException as e:
        if e.status_code != 403:
            raise
        allowed = False
    viewer: dict[str, Any] = {"name": user.get_name(), "may_act": allowed}
    words = {"states": STATES, "remedies": REMEDIES, "run_states": RUN_STATES, "run_remedies": RUN_REMEDIES}
    disk_hash = _disk_hash(time.monotonic() // HASH_EVERY)
    content = answer(connect(), StateLimits.of(settings()), viewer=viewer, disk_hash=disk_hash, **words)
    return Response(content, media_type="application/json")


@lru_cache(maxsize=1)
def _disk_hash(_: float) -> str:
    return launch.spec_hash()


@app.get("/api/history")
def get_history() -> JSONResponse:
    """The last hour of every stream; see penstock.monitoring.dashboard.history."""
    control = connect()
    now = control.now()
    return JSONResponse(downsample(control.history(now - HISTORY_MS), now))


@app.get("/api/fleet")
def get_fleet() -> JSONResponse:
    """The numbers of all agents; see penstock.monitoring.dashboard.fleet."""
    return JSONResponse(fleet.counts())


@app.get("/api/agent", dependencies=[Depends(may_act)])
def get_agent(key: Annotated[str, Query(min_length=1, max_length=4096)]) -> JSONResponse:
    """What the views have of an agent. That is data: not for every viewer."""
    if not looking.acquire(timeout=EXCLUSIVE_TIMEOUT):
        raise HTTPException(503, "others are asking; try again")
    try:
        return JSONResponse(agent(connect(), key))
    finally:
        looking.release()


@app.get("/api/letters", dependencies=[Depends(may_act)])
def get_letters(stream: Annotated[str, Query(max_length=120)], kind: dead_letters.Kind) -> JSONResponse:
    """A stream's dead letters, the newest first. They hold data: not for every viewer."""
    row = connect().progress().get(stream)
    if row is None:
        raise HTTPException(404, "there is no such stream, or it has not begun")
    own = (row.store or {}).get("dead_letter_topics", ())
    if not reading.acquire(timeout=dead_letters.PATIENCE):
        raise HTTPException(503, "others are reading; try again")
    try:
        found = dead_letters.read_newest(
            settings().bootstrap, stream, dead_letters.topics(kind, stream, row.topics, own)
        )
    except BrokerError as e:
        log.error("%s", e)
        raise HTTPException(503, "The broker does not answer.") from None
    finally:
        reading.release()
    return JSONResponse({"letters": [asdict(one) for one in found]})


@app.get("/api/log", dependencies=[Depends(may_act)])
def get_log(app: Annotated[str, Query(max_length=120)]) -> JSONResponse:
    """The last lines of the log of an app's driver, which may quote records: not for every viewer."""
    control = connect()
    row = control.app(app)
    driver = control.driver(row.incarnation) if row and row.incarnation else None
    if driver is None:
        raise HTTPException(404, "this app has had no driver yet")
    path = Path(driver.log).resolve()
    # The database only says which of the logs it is.
    if not path.is_relative_to(settings().logs.resolve()) or not path.is_file():
        raise HTTPException(404, "the log is not here: `penstock streams logs` on the driver's host shows it")
    lines = [printable(line) for line in process.tail(path, LOG_LINES).split("\n")]
    return JSONResponse({"name": path.name, "lines": lines, "at": int(path.stat().st_mtime * 1000)})


@app.get("/api/catalog")
def get_catalog() -> Response:
    """What is declared, as the files now say, and its drawing; see penstock.catalog.listing."""
    return Response(_catalog(launch.spec_hash()), media_type="application/json")


def _catalog(spec: str) -> bytes:
    # Who asks while it is being read gets what was read.
    with cataloguing:
        return _read_catalog(spec)


@lru_cache(maxsize=1)
def _read_catalog(spec: str) -> bytes:  # noqa: ARG001
    """Read by a process of its own: a project's code has no place in the api-server, and would stay as first read."""
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "penstock.catalog"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=CATALOG_TIMEOUT)
    except subprocess.TimeoutExpired as e:
        raise DeclarationError(f"the declarations were not read within {CATALOG_TIMEOUT:g} s") from e
    except subprocess.CalledProcessError as e:
        raise DeclarationError("the declarations cannot be read", got=e.stderr.decode(errors="replace").strip()) from e
    if done.stderr:
        log.error("reading the declarations said: %s", done.stderr.decode(errors="replace").strip())
    return done.stdout


@app.get("/api/explain", dependencies=[Depends(may_act)])
def get_explanation(sink: Annotated[str, Query(max_length=120)]) -> JSONResponse:
    """What the statement of a sink makes of its records; it costs a JVM for some seconds: not for every viewer."""
    spec = launch.spec_hash()
    found = _sinks(spec).get(sink)
    if found is None or not found["location"].startswith("sql/sinks/"):
        raise HTTPException(404, "there is no such statement")
    return JSONResponse({"text": _explained(sink, spec)})


@lru_cache(maxsize=100)
def _explained(sink: str, spec: str) -> str:  # noqa: ARG001
    with _tried():
        return sink_actions.explained(sink)


@contextmanager
def _tried() -> Iterator[None]:
    if not trying.acquire(timeout=EXCLUSIVE_TIMEOUT):
        raise HTTPException(503, "another sink is being explained or replayed; try again")
    try:
        yield
    finally:
        trying.release()


def _sinks(spec: str) -> dict[str, dict[str, Any]]:
    """The sinks that are declared; see penstock.catalog.listing."""
    return {one["name"]: one for one in orjson.loads(_catalog(spec))["declared"] if one["kind"] == "sink"}


@app.post("/api/actions", dependencies=[Depends(may_act), Depends(from_this_page)])
async def act(action: Annotated[Action, Depends(action_of)], user: GetUserDep) -> JSONResponse:
    """Start or stop a stream, or all streams of an app; release an app; ask something of a capture; replay a sink.

    404 for a name that is not declared.
    """
    actor = Actor(user.get_name(), "page")
    if action.verb != "release":
        return await run_in_threadpool(_act, action, actor)
    # It may take minutes: no thread of the api-server's waits for it.
    asked = await run_in_threadpool(_ask_release, action, actor)
    return JSONResponse({"release": await asyncio.shield(asyncio.wrap_future(asked))})


def _ask_release(action: Action, actor: Actor) -> Future[int]:
    control = connect()
    _desired(control, action)
    if action.kind != "app":
        raise HTTPException(422, "a release is of an app: all its streams share one driver")
    return releasing.ask(control, action.name, actor, action.note)


def _desired(control: Control, action: Action) -> dict[str, Desired]:
    """The desired state of the streams of an app, or of all; 404 if there is none of the name."""
    if action.kind in ("capture", "sink"):
        raise HTTPException(422, f"a {action.kind} is started and stopped as a stream")
    desired = control.desired(action.name if action.kind == "app" else None)
    known = bool(desired) if action.kind == "app" else action.name in desired
    if not known:
        raise HTTPException(404, f"there is no {action.kind} named {action.name!r}")
    return desired


def _act(action: Action, actor: Actor) -> JSONResponse:
    control = connect()
    if action.verb in ("poll", "reconcile", "snapshot", "continue"):
        if action.kind != "capture":
            raise HTTPException(422, f"{action.verb} is asked of a capture")
        if action.name not in control.desired(CAPTURES):
            raise HTTPException(404, f"there is no capture named {action.name!r}")
        return JSONResponse({"request": Captures(control).ask(action.name, action.verb, actor, action.note)})
    if action.verb == "replay":
        if action.kind != "sink":
            raise HTTPException(422, "only what a sink put aside is replayed here")
        if action.name not in _sinks(launch.spec_hash()):
            raise HTTPException(404, f"there is no sink named {action.name!r}")
        with _tried():
            control.record(actor, "replay", action.name, action.note)
            return JSONResponse(asdict(sink_actions.replayed(action.name)))
    desired = _desired(control, action)
    want: Literal["on", "off"] = "on" if action.verb == "start" else "off"
    names = [action.name] if action.kind == "stream" else list(desired)
    names = [name for name in names if desired[name] != want] or names
    control.set_desired(names, want, actor, action.note)
    return JSONResponse({"streams": names, "desired": want})
