"""The operator page: a FastAPI app inside Airflow's api-server, shown as a view of its UI.

Airflow does not authenticate plugin apps, so every route depends on Airflow's checks. No route declares a body, because
FastAPI would read it before the checks: `page_requests` reads it after them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from penstock.airflow import page_letters, page_releases, page_views
from penstock.airflow.connections import resolve_in_airflow
from penstock.airflow.page_requests import Action, action_of
from penstock.airflow.page_shared import code_reads, disk_hash, jvm_runs, limited, page_data, searches
from penstock.airflow.permissions import from_this_page, may_operate, may_view
from penstock.control import Actor, Control, Desired, connect
from penstock.control.repositories.captures import Captures
from penstock.errors import (
    CommandError,
    ControlError,
    DataLossChanged,
    DeclarationError,
    ReleaseRefused,
    SettingError,
)
from penstock.host import log_files
from penstock.logs import printable
from penstock.model.capture import APP as CAPTURES
from penstock.monitoring.dashboard import command_actions, releases
from penstock.monitoring.dashboard.answers import effects
from penstock.monitoring.dashboard.declarations import read_catalog, read_declarations
from penstock.monitoring.dashboard.panels import PanelCounts, read_cards
from penstock.settings import settings
from penstock.supervision.code_snapshot import disk_digest
from penstock.web import access

log = logging.getLogger(__name__)
PREFIX = "/penstock"
LOG_LINES = 200
ROOT = Path(__file__).resolve().parent / "static"
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

resolve_in_airflow()
panel_counts = PanelCounts(connect)

app = FastAPI(title="Penstock", dependencies=[Depends(may_view)], docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(page_releases.router)
app.include_router(page_views.router)
app.include_router(page_letters.router)


def own_host(header: str) -> bool:
    """Whether a Host header names this server."""
    return access.is_own_host(header, [urlsplit(conf.get("api", "base_url", fallback="")).hostname])


@app.middleware("http")
async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    if own_host(request.headers.get("host", "")):
        response = await call_next(request)
        if request.method != "GET":
            # Who has changed something is shown the change.
            page_data.invalidate()
    else:
        detail = "This server has another name: see Airflow's setting [api] base_url."
        response = JSONResponse({"detail": detail}, 421)
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    announced = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if response.status_code >= 400 and announced:
        # Otherwise the server reads all of a body that nobody needs, to be ready for the next request.
        response.headers["Connection"] = "close"
    return response


@app.exception_handler(ControlError)
async def control_error(_: Request, error: ControlError) -> JSONResponse:
    # The whole message names hosts and users: it belongs in the log, not before every viewer.
    log.error("%s", error)
    detail = "The control database does not answer. Streams continue; nothing can be shown or changed."
    return JSONResponse({"code": "control_away", "detail": detail}, 503)


@app.exception_handler(DeclarationError)
async def declaration_error(_: Request, error: DeclarationError) -> JSONResponse:
    log.error("%s", error)
    detail = "The declarations cannot be read: `penstock catalog` says why."
    return JSONResponse({"code": "declarations", "detail": detail}, 500)


@app.exception_handler(SettingError)
async def setting_error(_: Request, error: SettingError) -> JSONResponse:
    log.error("%s", error)
    detail = "A setting, or a Connection that it names, is no use: the log of the API server says why."
    return JSONResponse({"code": "settings", "detail": detail}, 503)


@app.exception_handler(ReleaseRefused)
async def release_refused(_: Request, error: ReleaseRefused) -> JSONResponse:
    # It repeats what was asked for.
    log.warning("%s", printable(str(error)))
    return JSONResponse({"code": "release_refused", "detail": str(error)}, 409)


@app.exception_handler(DataLossChanged)
async def data_loss_changed(_: Request, error: DataLossChanged) -> JSONResponse:
    log.warning("%s", printable(str(error)))
    return JSONResponse({"code": "data_loss_changed", "detail": str(error)}, 409)


@app.exception_handler(CommandError)
async def command_error(_: Request, error: CommandError) -> JSONResponse:
    log.warning("%s", printable(str(error)))
    return JSONResponse({"code": "command", "detail": str(error)}, 409)


@app.exception_handler(AnyHTTPException)
async def http_error(request: Request, error: AnyHTTPException) -> Response:
    """Send a person who opened the page itself to sign in; answer everything else as it is."""
    if error.status_code == 401 and request.headers.get("sec-fetch-dest") == "document":
        home = request.scope.get("root_path", "").removesuffix(PREFIX)
        return RedirectResponse(f"{home}/api/v2/auth/login?next={quote(f'{home}/plugin/penstock')}", 303)
    return await http_exception_handler(request, error)


@app.exception_handler(RequestValidationError)
async def invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
    """The errors without the input, which may be long."""
    details = [{"loc": [str(at)[:40] for at in e["loc"]], "msg": e["msg"][:200]} for e in error.errors()[:5]]
    return JSONResponse({"detail": details}, 422)


@app.get("/")
def page() -> HTMLResponse:
    return HTMLResponse((ROOT / "page.html").read_text().replace("{version}", VERSION))


@app.get("/static/{version}/{name:path}")
def static(version: str, name: str) -> FileResponse:
    if name not in FILES:
        raise HTTPException(404, "no such file")
    cache = "private, max-age=31536000, immutable" if version == VERSION else "no-store"
    path = FILES[name]
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": cache})


@app.get("/api/panels/{name}")
def get_panel(name: str) -> JSONResponse:
    """Counts of a panel; see penstock.monitoring.dashboard.panels."""
    return JSONResponse(panel_counts.read(_panel(name)))


@app.get("/api/panels/{name}/cards", dependencies=[Depends(may_operate)])
def get_cards(name: str, key: Annotated[str, Query(min_length=1, max_length=4096)]) -> JSONResponse:
    """What a panel shows about a key. That is data, which not every viewer may see."""
    panel = _panel(name)
    with limited(searches):
        return JSONResponse(read_cards(connect(), panel, key))


def _panel(name: str) -> dict[str, Any]:
    """A declared panel; see penstock.catalog.listing."""
    panel = read_declarations(disk_hash()).panels.get(name)
    if panel is None:
        raise HTTPException(404, "no panel of this name is declared")
    return panel


@app.get("/api/log", dependencies=[Depends(may_operate)])
def get_log(app: Annotated[str, Query(max_length=120)]) -> JSONResponse:
    """The last lines of the log of an app's driver, which may quote records: not for every viewer."""
    control = connect()
    row = control.app(app)
    driver = control.driver(row.incarnation) if row and row.incarnation else None
    if driver is None:
        raise HTTPException(404, "this app has had no driver yet")
    path = Path(driver.log).resolve()
    # The path is from the database: only files of the logs' folder are read.
    if not path.is_relative_to(settings().logs.resolve()) or not path.is_file():
        raise HTTPException(404, "the log is not here: `penstock streams logs` on the driver's host shows it")
    lines = [printable(line) for line in log_files.tail_text(path, LOG_LINES).split("\n")]
    return JSONResponse({"name": path.name, "lines": lines, "at": int(path.stat().st_mtime * 1000)})


@app.get("/api/releases")
def get_releases(app: Annotated[str, Query(max_length=120)]) -> JSONResponse:
    """The releases of an app; see penstock.monitoring.dashboard.releases."""
    control = connect()
    if control.app(app) is None:
        raise HTTPException(404, "there is no such app")
    return JSONResponse(releases.app_releases(control, app))


@app.get("/api/changed")
def get_changed() -> JSONResponse:
    """By app, how many of its files differ between its release and the disk."""
    return JSONResponse(releases.changed_apps(connect()))


@app.get("/api/changes", dependencies=[Depends(may_operate)])
def get_changes(
    app: Annotated[str, Query(max_length=120)],
    before: Annotated[str, Query(max_length=64)],
    after: Annotated[str, Query(max_length=64)] = releases.DISK,
) -> JSONResponse:
    """What differs between two releases, or a release and the disk. That is code, which not every viewer may see."""
    with limited(code_reads):
        return JSONResponse(releases.changes(connect(), app, before, after))


@app.get("/api/catalog")
def get_catalog() -> Response:
    """The declarations of the files on disk, and their graph; see penstock.catalog.listing."""
    return Response(read_catalog(disk_digest(settings().project)), media_type="application/json")


@app.get("/api/explain", dependencies=[Depends(may_operate)])
def get_explanation(sink: Annotated[str, Query(max_length=120)]) -> JSONResponse:
    """The statement of a sink, explained. It takes a JVM for seconds, so viewers may not start it."""
    spec = disk_digest(settings().project)
    declared = read_declarations(spec).of_kind("sink").get(sink)
    if declared is None or not declared["location"].startswith("sql/sinks/"):
        raise HTTPException(404, "no sink of this name is declared in sql/sinks/")
    return JSONResponse({"text": _explained(sink, spec)})


@lru_cache(maxsize=100)
def _explained(sink: str, spec: str) -> str:  # noqa: ARG001
    with limited(jvm_runs):
        return command_actions.explained(sink)


@app.get("/api/preview", dependencies=[Depends(may_operate)])
def get_preview(stream: Annotated[str, Query(max_length=120)]) -> JSONResponse:
    """The rows that a stream would write now; see `penstock streams preview`. They are data, and take a JVM."""
    if stream not in read_declarations(disk_digest(settings().project)).of_kind("stream"):
        raise HTTPException(404, "no stream of this name is declared")
    with limited(jvm_runs):
        return JSONResponse(asdict(command_actions.previewed(stream)))


@app.post("/api/actions", dependencies=[Depends(may_operate), Depends(from_this_page)])
async def act(action: Annotated[Action, Depends(action_of)], user: GetUserDep) -> JSONResponse:
    """Start or stop a stream or an app, accept its data loss, send a request to a capture, or replay a sink.

    404 if the name is not declared.
    """
    return await run_in_threadpool(_act, action, Actor(user.get_name(), "page"))


def _desired(control: Control, action: Action) -> dict[str, Desired]:
    """The desired state of the streams of an app, or of all; 404 if the name does not exist."""
    if action.kind not in ("stream", "app"):
        raise HTTPException(422, "only streams and apps are started and stopped")
    desired = control.desired(action.name if action.kind == "app" else None)
    exists = bool(desired) if action.kind == "app" else action.name in desired
    if not exists:
        raise HTTPException(404, f"there is no {action.kind} named {action.name!r}")
    return desired


def _act(action: Action, actor: Actor) -> JSONResponse:
    control = connect()
    if (action.places and action.verb not in ("replay", "discard")) or (action.stream and action.verb != "discard"):
        raise HTTPException(422, "places are for replays and discards only, a stream for discards")
    if action.gaps and action.verb != "go-on":
        raise HTTPException(422, "gaps are for streams that go on only")
    if action.verb in ("poll", "reconcile", "snapshot", "continue"):
        if action.kind != "capture":
            raise HTTPException(422, f"{action.verb} is for captures only")
        if action.name not in control.desired(CAPTURES):
            raise HTTPException(404, f"there is no capture named {action.name!r}")
        if action.dry:
            return JSONResponse({"would": effects.capture_effects(page_data.read(), action.name, action.verb)})
        return JSONResponse({"request": Captures(control).ask(action.name, action.verb, actor, action.note)})
    if action.verb == "replay":
        return page_letters.replay(control, action, actor)
    if action.verb == "discard":
        return page_letters.discard_letters(control, action, actor)
    desired = _desired(control, action)
    if action.verb == "go-on":
        if action.dry:
            raise HTTPException(422, "what is given up is shown with the stream")
        of_stream = action.kind == "stream"
        gaps = control.accept_data_loss(action.name, actor, action.gaps, action.note) if of_stream else []
        if not gaps:
            raise HTTPException(409, f"{action.kind} {action.name!r} is not blocked by data loss")
        return JSONResponse({"accepted": [str(gap) for gap in gaps]})
    want: Literal["on", "off"] = "on" if action.verb == "start" else "off"
    names = [action.name] if action.kind == "stream" else list(desired)
    names = [name for name in names if desired[name] != want] or names
    if action.dry:
        return JSONResponse({"would": effects.desired_effects(page_data.read(), names, action.verb)})
    control.set_desired(names, want, actor, action.note)
    return JSONResponse({"streams": names, "desired": want})
