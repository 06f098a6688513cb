"""Routes of the operator page about dead letters and late records. They are data, which not every viewer may see."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Response
from fastapi.responses import JSONResponse

from penstock.airflow.page_requests import Action
from penstock.airflow.page_shared import (
    Name,
    PageLook,
    PageNumber,
    SearchText,
    jvm_runs,
    letter_reads,
    limited,
    page_data,
    read_project,
)
from penstock.airflow.permissions import may_operate
from penstock.control import Actor, Control, connect
from penstock.errors import BrokerError
from penstock.monitoring.dashboard import command_actions, dead_letters
from penstock.monitoring.dashboard.answers import dead_letters as letter_answers
from penstock.settings import settings

log = logging.getLogger(__name__)
router = APIRouter()


@router.get("/api/dead-letters")
def get_dead_letters(look: PageLook, q: SearchText = "", page: PageNumber = 1) -> Response:
    """A page of the streams that have dead letters or late records; numbers only, which every viewer may see."""
    return look.answer(letter_answers.dead_letter_list(look.data, connect(), q, page))


@router.get("/api/dead-letters/reasons", dependencies=[Depends(may_operate)])
def get_reasons(look: PageLook, stream: Name = "") -> Response:
    """The newest dead letters of a stream, or of all, by reason; see penstock.monitoring.dashboard.dead_letters."""
    if stream:
        row = look.data.streams.get(stream)
        if row is None:
            raise HTTPException(404, "there is no such stream")
        topics = letter_answers.topics_of(row)
    else:
        topics = letter_answers.letter_topics(look.data)
    with limited(letter_reads), _broker():
        reasons = dead_letters.read_reasons(settings().bootstrap, topics, stream)
    return look.answer({"reasons": reasons, "read": dead_letters.BACK})


@router.get("/api/letters", dependencies=[Depends(may_operate)])
def get_letters(stream: Name, kind: dead_letters.Kind) -> JSONResponse:
    """A stream's dead letters, newest first."""
    row = connect().progress_of(stream)
    if row is None:
        raise HTTPException(404, "there is no such stream, or it has not started yet")
    topics = dead_letters.topics(kind, stream, row.topics, (row.store or {}).get("dead_letter_topics", ()))
    with limited(letter_reads), _broker():
        letters = dead_letters.read_newest(settings().bootstrap, stream, topics)
    return JSONResponse({"letters": [asdict(letter) for letter in letters]})


@contextmanager
def _broker() -> Iterator[None]:
    """Answer that the broker does not, without the names of its hosts."""
    try:
        yield
    except BrokerError as e:
        log.error("%s", e)
        raise HTTPException(503, "The broker does not answer.") from None


def replay(control: Control, action: Action, actor: Actor) -> JSONResponse:
    """Replay dead letters of a topic to it, or of a sink to its store; 404 if there is no such topic or sink."""
    if action.kind not in ("sink", "letters"):
        raise HTTPException(422, "only sinks and the letters of a topic are replayed here")
    if action.kind == "letters" and not action.places:
        raise HTTPException(422, "name the places of the letters")
    letters = action.kind == "letters"
    known: Any = letter_answers.all_letter_topics(page_data.read()) if letters else read_project().of_kind("sink")
    if action.name not in known:
        raise HTTPException(404, f"there is no {'topic of letters' if letters else 'sink'} named {action.name!r}")
    with limited(jvm_runs):
        places = f"places {', '.join(action.places)}" if action.places else ""
        control.record(actor, "replay", action.name, "; ".join(filter(None, (action.note, places))))
        run = command_actions.letters_replayed if letters else command_actions.replayed
        return JSONResponse(asdict(run(action.name, action.places)))
