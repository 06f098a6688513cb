"""Requests of the operator page that let drivers run other code: releases, and replacements of streams."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from penstock.airflow.page_requests import ReleaseAction, ReplacementAction, release_of, replacement_of
from penstock.airflow.page_shared import code_reads, limited, page_data
from penstock.airflow.permissions import from_this_page, may_operate, may_release
from penstock.control import Actor, ReplacementRow, connect
from penstock.monitoring.dashboard.answers.effects import release_effects
from penstock.monitoring.dashboard.answers.replacement_effects import replacement_effects
from penstock.supervision.release_queue import ReleaseQueue
from penstock.supervision.replacement_changes import change_replacement, check_change

router = APIRouter()
# The code of one app is tried at a time.
releasing = ReleaseQueue()


@router.post("/api/releases", dependencies=[Depends(may_release), Depends(from_this_page)])
async def post_release(wanted: Annotated[ReleaseAction, Depends(release_of)], user: GetUserDep) -> JSONResponse:
    """Release an app. 404 if it is not declared, 409 if the release is refused."""
    if wanted.dry:
        return JSONResponse({"would": await run_in_threadpool(_release_effects, wanted)})
    # It may take minutes, in which no thread of the api-server must wait.
    number = await run_in_threadpool(_request_release, wanted, Actor(user.get_name(), "page"))
    return JSONResponse({"release": await asyncio.shield(asyncio.wrap_future(number))})


def _release_effects(wanted: ReleaseAction) -> list[str]:
    data = page_data.read()
    if wanted.app not in {app.name for app in data.view.apps}:
        raise HTTPException(404, f"there is no app named {wanted.app!r}")
    with limited(code_reads):
        return release_effects(connect(), data, wanted.app, wanted.to)


def _request_release(wanted: ReleaseAction, actor: Actor) -> Future[int]:
    control = connect()
    if not control.desired(wanted.app):
        raise HTTPException(404, f"there is no app named {wanted.app!r}")
    return releasing.ask(control, wanted.app, actor, wanted.note, to=wanted.to)


@router.post("/api/replacements", dependencies=[Depends(may_release), Depends(from_this_page)])
async def post_replacement(
    wanted: Annotated[ReplacementAction, Depends(replacement_of)], user: GetUserDep
) -> JSONResponse:
    """Cut, cancel or confirm a replacement, or go back. 404 if there is none, 409 if its state does not allow it."""
    if wanted.dry:
        return JSONResponse({"would": await run_in_threadpool(_replacement_effects, wanted)})
    changed = await run_in_threadpool(_change_replacement, wanted, Actor(user.get_name(), "page"))
    if isinstance(changed, Future):
        changed = await asyncio.shield(asyncio.wrap_future(changed))
    return JSONResponse({"replacement": changed.id})


def _replacement_effects(wanted: ReplacementAction) -> list[str]:
    return replacement_effects(connect(), page_data.read(), _replacement(wanted.replacement), wanted.verb)


def _change_replacement(wanted: ReplacementAction, actor: Actor) -> ReplacementRow | Future[ReplacementRow]:
    row = _replacement(wanted.replacement)
    if wanted.verb == "back":
        check_change(row, "back")
        return releasing.go_back(connect(), row, actor, wanted.note)
    change_replacement(connect(), row, wanted.verb, actor, wanted.note)
    return row


@router.get("/api/differences", dependencies=[Depends(may_operate)])
def get_differences(replacement: Annotated[str, Query(max_length=32)]) -> JSONResponse:
    """Examples of rows in which a new version differs. They are data, which not every viewer may see."""
    examples: list[Any] = _replacement(replacement).figures.get("examples") or []
    return JSONResponse({"examples": examples})


def _replacement(identity: str) -> ReplacementRow:
    row = connect().replacement(identity)
    if row is None:
        raise HTTPException(404, "there is no such replacement")
    return row
