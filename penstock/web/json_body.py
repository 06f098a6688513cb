"""The body of a request to a FastAPI app, read without FastAPI, which would read any of it and before all checks."""

from __future__ import annotations

from typing import TypeVar

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from penstock.web import access

M = TypeVar("M", bound=BaseModel)
# Number of errors of a body that are listed.
FAULTS = 100


def is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def read_json(request: Request, model: type[M], limit: int, timeout: float) -> M:
    """What a body of JSON says. limit: bytes; timeout: seconds in which it must be there.

    HTTPException 408, 413, 415; RequestValidationError, which does not say what was sent.
    """
    if not is_json(request):
        raise HTTPException(415, "send application/json")
    try:
        body = await access.read_body(request.stream(), limit, timeout)
    except access.TooLarge:
        raise HTTPException(413, f"a request is at most {limit} bytes") from None
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {timeout:g} s") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as e:
        raise refusal(e) from None


def refusal(e: ValidationError) -> RequestValidationError:
    """What a model has against a request, as the error of FastAPI; it does not say what was sent."""
    if (count := e.error_count()) > FAULTS:
        # To tell each takes longer than to find it.
        return RequestValidationError([{"loc": ("body",), "msg": f"has {count} faults"}])
    return RequestValidationError(e.errors(include_input=False, include_url=False))
