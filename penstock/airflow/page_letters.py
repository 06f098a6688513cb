"""Routes of the operator page about records, dead letters and late ones: data, which not every viewer may see."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Response
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
from penstock.errors import BrokerError, LeaseLost
from penstock.kafka.dead_letters import read_dead_letters
from penstock.kafka.discard import discard
from penstock.monitoring.dashboard import command_actions, dead_letters, records
from penstock.monitoring.dashboard.answers import dead_letters as letter_answers
from penstock.settings import settings

log = logging.getLogger(__name__)
router = APIRouter()
# Offsets of each partition in which letters are discarded that the page has shown: more may have come since.
LAST = 10_000


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
        by_reason = dead_letters.read_reasons(settings().bootstrap, topics, stream)
    return look.answer({**vars(by_reason), "read": dead_letters.BACK})


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


@router.get("/api/records", dependencies=[Depends(may_operate)])
def get_records(
    stream: Name, topic: Annotated[str, Query(max_length=249)] = "", key: Annotated[str, Query(max_length=1000)] = ""
) -> JSONResponse:
    """The newest records of an output topic of a stream, by default of the first, or those of a key."""
    declared = page_data.read().declared(stream)
    topics = [node["name"] for node in declared["writes"] if node["kind"] == "topic"] if declared else []
    if not topics or (topic and topic not in topics):
        raise HTTPException(404, "no stream of this name that writes this topic is declared")
    with limited(letter_reads), _broker():
        return JSONResponse(asdict(records.read_records(settings().bootstrap, topic or topics[0], key or None)))


@contextmanager
def _broker() -> Iterator[None]:
    """Answer that the broker does not, without the names of its hosts, or that a discard is shut out."""
    try:
        yield
    except BrokerError as e:
        log.error("%s", e)
        raise HTTPException(503, "The broker does not answer.") from None
    except LeaseLost:
        raise HTTPException(409, "A replay has begun meanwhile: discard them again when it has ended.") from None


def replay(control: Control, action: Action, actor: Actor) -> JSONResponse:
    """Replay dead letters of a topic to it, or of a sink to its store; 404 if there is no such topic or sink."""
    if action.kind not in ("sink", "letters"):
        raise HTTPException(422, "only sinks and the letters of a topic are replayed here")
    if action.kind == "letters":
        _check_letters(action)
    elif action.name not in read_project().of_kind("sink"):
        raise HTTPException(404, f"there is no sink named {action.name!r}")
    if action.dry:
        return JSONResponse({"would": _replay_effects(action)})
    with limited(jvm_runs):
        control.record(actor, "replay", action.name, _detail(action))
        return JSONResponse(asdict(_replay_of(action)(action.name, action.places)))


def _replay_of(action: Action) -> Callable[..., command_actions.Replayed]:
    return command_actions.letters_replayed if action.kind == "letters" else command_actions.replayed


def discard_letters(control: Control, action: Action, actor: Actor) -> JSONResponse:
    """Note that dead letters of a stream need nothing any more; see penstock.kafka.discard."""
    if action.kind != "letters" or not action.stream:
        raise HTTPException(422, "letters of a topic are discarded, of one stream")
    _check_letters(action)
    bootstrap = settings().bootstrap
    with limited(letter_reads), _broker():
        chosen = [
            letter
            for letter in read_dead_letters([action.name], bootstrap, LAST)
            if letter.stream == action.stream and letter.location in action.places
        ]
        if not chosen:
            raise HTTPException(409, "the topic has no such letters among its last ones")
        if not action.dry:
            control.record(actor, "discard", action.name, f"of {action.stream}; {_detail(action)}")
        results = discard(chosen, bootstrap, dry=action.dry)
    counts = Counter(f"{one.ended} before" if one.ended else "discarded" for one in results)
    if action.dry:
        return JSONResponse({"would": _discard_effects(counts)})
    return JSONResponse({"counts": counts})


def _check_letters(action: Action) -> None:
    if not action.places:
        raise HTTPException(422, "name the places of the letters")
    if action.name not in letter_answers.all_letter_topics(page_data.read()):
        raise HTTPException(404, f"there is no topic of letters named {action.name!r}")


def _detail(action: Action) -> str:
    places = f"places {', '.join(action.places)}" if action.places else ""
    return "; ".join(filter(None, (action.note, places)))


def _replay_effects(action: Action) -> list[str]:
    with limited(jvm_runs):
        done = _replay_of(action)(action.name, action.places, dry=True)
    is_refused = " is refused" if action.kind == "letters" else ""
    refused = [f"{one['place']}{is_refused}: {one['said']}" for one in done.left]
    return [f"{', '.join(f'{n:,} {what}' for what, n in done.counts.items()) or 'Nothing is found'}.", *refused]


def _discard_effects(counts: Mapping[str, int]) -> list[str]:
    before = [f"{n:,} {what}" for what, n in counts.items() if what != "discarded"]
    return [
        f"{counts['discarded']:,} are noted as discarded" + (f"; {', '.join(before)}" if before else "") + ".",
        "No replay ever sends or writes them; the topic keeps them until they expire. This cannot be undone.",
    ]
