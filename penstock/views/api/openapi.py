"""The description of the views' requests and answers, as OpenAPI 3.1, for clients that are made of it."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from penstock.views.api import problems
from penstock.views.api.query import Counts, KeyLookup, Search
from penstock.views.cluster.protocol import DEADLINE

REF = "#/components/schemas/{model}"


class Freshness(BaseModel):
    """lag: records after the answer's offsets; age_ms: since an end of the topic was asked for that it reaches; stale:
    whether that is too long."""

    lag: int
    age_ms: int
    stale: bool


class Answer(BaseModel):
    """instance: who answered."""

    freshness: Freshness
    instance: str


class Row(Answer):
    """A key and the value of its record."""

    key: str
    value: dict[str, Any]


class KeyValue(BaseModel):
    """A row of a page."""

    key: str
    value: dict[str, Any]


class Page(Answer):
    """cursor: where the next page begins, if there is one."""

    rows: list[KeyValue]
    cursor: str | None = None


class Rows(Answer):
    """Values by key, and the keys that are not there."""

    rows: dict[str, dict[str, Any]]
    missing: list[str]


class Groups(Answer):
    """groups: the values of `by` and `count`, largest first; at: the moment of it, epoch milliseconds."""

    groups: list[dict[str, Any]]
    total: int
    at: int


class Partition(BaseModel):
    """next, end: offsets."""

    next: int
    end: int
    lag: int
    age_ms: int


class Statistics(BaseModel):
    """A view as an instance knows it. dead: records that were none, reason: why the last one was none; rebuilt: why the
    store was created again; partitions: those that the instance answers for; owners: who answers, by partition."""

    name: str
    topic: str
    by: list[str]
    schema_: str
    instance: str
    state: str
    error: str | None
    keys: int
    bytes: int
    dead: int
    reason: str
    rebuilt: str
    partitions: dict[str, Partition]
    owners: dict[str, list[str]]
    freshness: Freshness | None

    model_config = ConfigDict(alias_generator=lambda name: name.rstrip("_"))


class Views(BaseModel):
    """All views."""

    views: list[Statistics]


class Live(BaseModel):
    """The instance lives."""

    live: Literal[True]


class Ready(BaseModel):
    """views: those that are loaded; refused: those that cannot be served as their topics are, and why."""

    ready: Literal[True]
    views: list[str]
    refused: dict[str, str]


class Problem(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


ANSWERS: dict[str, type[BaseModel]] = {
    "views": Views, "view": Statistics, "row": Row, "batch": Rows, "rows": Page, "search": Page, "counts": Groups,
    "live": Live, "ready": Ready,
}  # fmt: skip
BODIES: dict[str, type[BaseModel]] = {"batch": KeyLookup, "search": Search, "counts": Counts}
# Of a view's values, which say how fresh they are.
OF_VALUES = ("row", "batch", "rows", "search", "counts")
OPEN_TO_ALL = ("live", "ready")
WHY = {
    400: "What is asked cannot be answered as it is asked.",
    401: "The token is wrong or missing.",
    404: "There is no such view, or no such key in it.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    414: "The key is too long.",
    415: "The body is not declared as application/json.",
    421: "This server is not known by that name, or was sent on what it does not answer for.",
    422: "A parameter or the body is not of its schema.",
    500: "An unexpected error; see the instance's log.",
    503: "Not ready, or too much is asked at once: ask again after `Retry-After`.",
    504: "It did not end before its deadline.",
}
HEADERS = {
    "Penstock-Lag": {"description": "Records after the answer's offsets.", "schema": {"type": "integer"}},
    "Penstock-Age-Ms": {
        "description": "Milliseconds since an end of the topic was asked for that all of the answer reaches.",
        "schema": {"type": "integer"},
    },
    "Penstock-Stale": {"description": "Whether that is too long.", "schema": {"type": "boolean"}},
}
CRITERIA = {
    "name": "criteria", "in": "query", "style": "form", "explode": True,
    "description": "By the names of the view's fields: `field`, `map.entry`, `field.ge`.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}  # fmt: skip
RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def document(app: FastAPI, token: str, timeout: float, max_timeout: float) -> dict[str, Any]:
    """The whole document. token: what callers must send, empty for nothing; timeout, max_timeout: seconds that a
    request has unless it asks for another time, and may ask for."""
    result = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, openapi_version="3.1.0"
    )
    models: set[type[BaseModel]] = {*ANSWERS.values(), *BODIES.values(), Problem}
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    result["components"] = components
    for path in result["paths"].values():
        for operation in path.values():
            name = operation["operationId"]
            deadline = {
                "name": DEADLINE.title(), "in": "header", "description": "Milliseconds that the request has.",
                "schema": {
                    "type": "integer", "minimum": 1, "maximum": int(max_timeout * 1000), "default": int(timeout * 1000)
                },
            }  # fmt: skip
            for parameter in operation.get("parameters", ()):
                # One that may be left out: in a query there is no null.
                parameter["schema"] = next(iter(parameter["schema"].pop("anyOf", ())), {}) | parameter["schema"]
            if name in OF_VALUES:
                operation["parameters"].append(deadline)
            if name == "rows":
                operation["parameters"].append(CRITERIA)
            if name in BODIES:
                operation["requestBody"] = {"required": True, "content": _content("application/json", BODIES[name])}
            if token and name not in OPEN_TO_ALL:
                operation["security"] = [{"token": []}]
            operation["responses"] = _responses(name, bool(token))
    return result


def _responses(name: str, token: bool) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "The answer.", "content": _content("application/json", ANSWERS[name])}
    if name in OF_VALUES:
        good["headers"] = HEADERS
    responses = {"200": good}
    for status in _statuses(name, token):
        response: dict[str, Any] = {"description": WHY[status], "content": _content(problems.TYPE, Problem)}
        if status == 503:
            response["headers"] = RETRY
        responses[str(status)] = response
    return responses


def _statuses(name: str, token: bool) -> list[int]:
    """Statuses of errors that a route may return."""
    if name in OPEN_TO_ALL:
        return [500, 503]
    statuses = [*([401] if token else []), 400, 421, 500, 503]
    if name != "views":
        statuses += [404]
    if name in OF_VALUES:
        statuses += [422, 504]
    if name in BODIES:
        statuses += [408, 413, 415]
    return sorted([*statuses, 414] if name == "row" else statuses)


def _content(kind: str, model: type[BaseModel]) -> dict[str, Any]:
    return {kind: {"schema": {"$ref": REF.format(model=model.__name__)}}}
