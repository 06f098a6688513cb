"""The views of the operator page: pages and searches of the present moment, and the past for charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from fastapi.responses import JSONResponse

from penstock.airflow.page_shared import (
    Name,
    PageLook,
    PageNumber,
    SearchText,
    ShortName,
    code_reads,
    limited,
    page_data,
    read_project,
)
from penstock.airflow.permissions import may_operate
from penstock.control import connect
from penstock.monitoring.dashboard.answers import archives_views, parts, streams
from penstock.monitoring.dashboard.answers.activity import activity
from penstock.monitoring.dashboard.answers.paging import PAGE
from penstock.monitoring.dashboard.answers.summary import summary
from penstock.monitoring.dashboard.backfills import RUN_REMEDIES, RUN_STATES
from penstock.monitoring.dashboard.declared_source import read_source
from penstock.monitoring.dashboard.history import Span, TotalsHistory, hour_history, stream_history
from penstock.monitoring.dashboard.replacements import REPLACEMENT_REMEDIES, REPLACEMENT_STATES
from penstock.monitoring.dashboard.shared_result import SharedResult
from penstock.monitoring.dashboard.states import REMEDIES, STATES, State
from penstock.settings import settings

router = APIRouter()
past = TotalsHistory()
# Seconds: a step of the totals takes longer.
totals_history = SharedResult(lambda: past.read(connect(), page_data.read().delays), keep=5.0, keep_failures=False)

TEXTS: Mapping[str, Mapping[Any, str]] = {
    "states": STATES, "remedies": REMEDIES, "run_states": RUN_STATES, "run_remedies": RUN_REMEDIES,
    "replacement_states": REPLACEMENT_STATES, "replacement_remedies": REPLACEMENT_REMEDIES,
}  # fmt: skip


@router.get("/api/texts")
def get_texts() -> JSONResponse:
    """What states mean, and what to do in each."""
    return JSONResponse(TEXTS)


@router.get("/api/lags")
def get_lags(look: PageLook) -> Response:
    """By stream and topic that it reads, records that are not read yet; of those that have any."""
    return look.answer({"lags": streams.lags(look.data)})


@router.get("/api/overview")
def get_overview(look: PageLook) -> Response:
    """What needs a person, and totals; see penstock.monitoring.dashboard.answers.summary."""
    return look.answer(summary(look.data))


@router.get("/api/streams")
def get_streams(
    look: PageLook,
    q: SearchText = "",
    app: Name = "",
    state: State | None = None,
    page: PageNumber = 1,
    sort: streams.StreamOrder | None = None,
) -> Response:
    """A page of streams; see penstock.monitoring.dashboard.answers.streams."""
    return look.answer(streams.stream_list(look.data, q, app, state or "", page, sort))


@router.get("/api/streams/{name}")
def get_stream(look: PageLook, name: str) -> Response:
    """Everything about a stream."""
    details = streams.stream_details(look.data, connect(), name)
    if details is None:
        raise HTTPException(404, "there is no such stream")
    return look.answer(details)


@router.get("/api/streams/{name}/source", dependencies=[Depends(may_operate)])
def get_source(name: str) -> JSONResponse:
    """The text that declares a stream, capture or sink. That is code, which not every viewer may see."""
    with limited(code_reads):
        declared = read_project().rows.get(name.partition("@")[0])
        if declared is None:
            raise HTTPException(404, "nothing of this name is declared")
        source = read_source(settings().project, declared["location"])
    if source is None:
        raise HTTPException(404, "its file is outside the project, or cannot be read")
    return JSONResponse(asdict(source))


@router.get("/api/captures")
def get_captures(look: PageLook, q: SearchText = "", page: PageNumber = 1) -> Response:
    """A page of captures."""
    return look.answer(parts.capture_list(look.data, q, page))


@router.get("/api/sinks")
def get_sinks(look: PageLook, q: SearchText = "", page: PageNumber = 1) -> Response:
    """A page of sinks."""
    return look.answer(parts.sink_list(look.data, q, page))


@router.get("/api/backfills")
def get_backfills(look: PageLook, page: PageNumber = 1) -> Response:
    """A page of runs of backfills."""
    return look.answer(parts.backfill_list(look.data, connect(), page))


@router.get("/api/replacements")
def get_replacements(look: PageLook, page: PageNumber = 1) -> Response:
    """A page of replacements."""
    return look.answer(parts.replacement_list(look.data, connect(), page))


@router.get("/api/archives")
def get_archives(look: PageLook) -> Response:
    """Declared archives."""
    return look.answer(archives_views.archive_list(look.data, connect()))


@router.get("/api/views")
def get_views(look: PageLook) -> Response:
    """Declared views by instance, and panels."""
    return look.answer(archives_views.view_list(look.data))


@router.get("/api/activity")
def get_activity(
    look: PageLook,
    q: SearchText = "",
    actor: Annotated[str, Query(max_length=200)] = "",
    verb: Annotated[str, Query(max_length=20)] = "",
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    """Who did what, newest first."""
    return look.answer(activity(look.data, connect(), q, actor, verb, before))


@router.get("/api/history")
def get_history(
    names: Annotated[list[ShortName], Query(max_length=PAGE, default_factory=list)],
    stream: Name = "",
    span: Span = "1h",
) -> JSONResponse:
    """A span of one stream, or the last hour of some, or of all together; see penstock.monitoring.dashboard.history."""
    control = connect()
    if stream:
        app = control.app_of(stream)
        if app is None:
            raise HTTPException(404, "there is no such stream")
        return JSONResponse(stream_history(control, stream, app, span))
    if names:
        return JSONResponse(hour_history(control, names))
    return JSONResponse(totals_history.read())
