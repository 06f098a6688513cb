"""The operator page: a FastAPI app inside Airflow's api-server, shown as a view of its UI.

Airflow does not authenticate plugin apps: every route here depends on Airflow's own checks, the static files too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as AnyHTTPException

from penstock.control import Actor, connect
from penstock.errors import ControlError, DeclarationError, ReleaseRefused
from penstock.observe.history import HISTORY_MS, downsample
from penstock.observe.overview import overview
from penstock.observe.snapshot import read
from penstock.observe.states import STATES, Limits
from penstock.settings import PROJECT, settings
from penstock.supervision import launch, releases

log = logging.getLogger(__name__)

OPERATE_DAG = "operate_streams"  # who may trigger this DAG may start, stop and release here
PREFIX = "/penstock"
CATALOG_PATIENCE = 60.0
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

may_see = requires_access_view(AccessView.PLUGINS)
may_act = requires_access_dag("POST", DagAccessEntity.RUN, OPERATE_DAG)

app = FastAPI(title="Penstock", dependencies=[Depends(may_see)], docs_url=None, redoc_url=None, openapi_url=None)


def from_this_page(request: Request) -> None:
    """Refuse what another site's page could send with the user's cookie."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send application/json")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="")).netloc} - {""}
    bearer = request.headers.get("authorization", "").lower().startswith("bearer ")
    foreign = origin is not None and urlsplit(origin).netloc not in own
    # A browser sends at least one of both headers; a script that holds a token of its own needs neither.
    if site not in (None, "same-origin") or foreign or (origin is None and site is None and not bearer):
        log.warning("refused an action from a foreign origin: Origin %s, Sec-Fetch-Site %s", origin, site)
        raise HTTPException(403, "an action must come from this page: foreign or missing Origin")


class Action(BaseModel):
    """What the operator asks for; `note` goes into the record."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["start", "stop", "release"]
    kind: Literal["stream", "app"]
    name: str = Field(max_length=120)
    note: str = Field("", max_length=500)


@app.middleware("http")
async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
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


@app.exception_handler(AnyHTTPException)
async def refused(request: Request, error: AnyHTTPException) -> Response:
    """Send a person who opened the page itself to sign in; answer everything else as it is."""
    if error.status_code == 401 and request.headers.get("sec-fetch-dest") == "document":
        home = request.scope.get("root_path", "").removesuffix(PREFIX)
        return RedirectResponse(f"{home}/api/v2/auth/login?next={quote(f'{home}/plugin/penstock')}", 303)
    return await http_exception_handler(request, error)


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
def get_overview(request: Request, user: GetUserDep) -> JSONResponse:
    """Everything but the charts; see penstock.observe.overview."""
    try:
        may_act(request, user)
        allowed = True
    except HTTPException as e:
        if e.status_code != 403:
            raise
        allowed = False
    view = overview(read(connect()), Limits.of(settings()))
    viewer: dict[str, Any] = {"name": user.get_name(), "may_act": allowed}
    return JSONResponse({"viewer": viewer, "states": STATES, **view.as_dict()})


@app.get("/api/history")
def get_history() -> JSONResponse:
    """The last hour of every stream; see penstock.observe.history."""
    control = connect()
    now = control.now()
    return JSONResponse(downsample(control.history(now - HISTORY_MS), now))


@app.get("/api/catalog")
def get_catalog() -> Response:
    """What is declared, as the files now say, and its drawing; see penstock.catalog.listing."""
    return Response(_catalog(launch.spec_hash()), media_type="application/json")


@lru_cache(maxsize=1)
def _catalog(spec: str) -> bytes:  # noqa: ARG001
    """Read by a process of its own: a project's code has no place in the api-server, and would stay as first read."""
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "penstock.catalog"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=CATALOG_PATIENCE)
    except subprocess.TimeoutExpired as e:
        raise DeclarationError(f"the declarations were not read within {CATALOG_PATIENCE:g} s") from e
    except subprocess.CalledProcessError as e:
        raise DeclarationError("the declarations cannot be read", got=e.stderr.decode(errors="replace").strip()) from e
    if done.stderr:
        log.error("not all declarations can be read: %s", done.stderr.decode(errors="replace").strip())
    return done.stdout


@app.post("/api/actions", dependencies=[Depends(may_act), Depends(from_this_page)])
def act(action: Action, user: GetUserDep) -> JSONResponse:
    """Start or stop a stream, or all streams of an app; release an app. 404 for a name that is not declared."""
    control, actor = connect(), Actor(user.get_name(), "page")
    desired = control.desired(action.name if action.kind == "app" else None)
    known = bool(desired) if action.kind == "app" else action.name in desired
    if not known:
        raise HTTPException(404, f"there is no {action.kind} named {action.name!r}")
    if action.verb == "release":
        if action.kind != "app":
            raise HTTPException(422, "a release is of an app: all its streams share one driver")
        return JSONResponse({"release": releases.release(control, action.name, actor, action.note)})
    want: Literal["on", "off"] = "on" if action.verb == "start" else "off"
    names = [action.name] if action.kind == "stream" else list(desired)
    names = [name for name in names if desired[name] != want] or names
    control.set_desired(names, want, actor, action.note)
    return JSONResponse({"streams": names, "desired": want})
