"""Bodies of requests to the operator page: read only after the checks of the sender, so no route declares one."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from penstock.web import json_body

# Seconds and bytes.
BODY_TIMEOUT, BODY_LIMIT = 10.0, 1024 * 1024
# An offset alone may be of several topics, whose dead letters are in one.
PLACE = r"^[a-zA-Z0-9._-]{1,249}\[[0-9]{1,9}\]@[0-9]{1,18}$"


class Action(BaseModel):
    """An action of an operator; `note` is recorded with it.

    Attributes:
        name: Of a stream, app, capture or sink, or of a topic of dead letters.
        places: Of the records of dead letters that are replayed or discarded, TOPIC[PARTITION]@OFFSET.
        stream: Whose dead letters are discarded.
        gaps: Ids of the gaps without whose records a blocked stream goes on, as they were shown.
        dry: Whether the answer only says what the action would do.
    """

    model_config = ConfigDict(extra="forbid")

    verb: Literal["start", "stop", "poll", "reconcile", "snapshot", "continue", "replay", "discard", "go-on"]
    kind: Literal["stream", "app", "capture", "sink", "letters"]
    name: str = Field(max_length=249)
    note: str = Field("", max_length=500, pattern=r"^\P{Cc}*$")
    places: list[Annotated[str, Field(pattern=PLACE)]] = Field(default=[], max_length=100)
    stream: str = Field("", max_length=249)
    gaps: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] = Field(default=[], max_length=20_000)
    dry: bool = False


class ReleaseAction(BaseModel):
    """A release of an app: of the code on the disk, or of the earlier release `to`, a number or digest.

    `dry` asks only what it would do.
    """

    model_config = ConfigDict(extra="forbid")

    app: str = Field(max_length=120)
    to: str = Field("", max_length=64)
    note: str = Field("", max_length=500, pattern=r"^\P{Cc}*$")
    dry: bool = False


class ReplacementAction(BaseModel):
    """A change of the replacement with an id; `back` asks for the version before it.

    `dry` asks only what it would do.
    """

    model_config = ConfigDict(extra="forbid")

    verb: Literal["cut", "cancel", "confirm", "back"]
    replacement: str = Field(max_length=32)
    note: str = Field("", max_length=500, pattern=r"^\P{Cc}*$")
    dry: bool = False


async def action_of(request: Request) -> Action:
    """The body of an action, read after the checks of its sender."""
    return await json_body.read_json(request, Action, BODY_LIMIT, BODY_TIMEOUT)


async def release_of(request: Request) -> ReleaseAction:
    """The body of a release, likewise."""
    return await json_body.read_json(request, ReleaseAction, BODY_LIMIT, BODY_TIMEOUT)


async def replacement_of(request: Request) -> ReplacementAction:
    """The body of a change of a replacement, likewise."""
    return await json_body.read_json(request, ReplacementAction, BODY_LIMIT, BODY_TIMEOUT)
