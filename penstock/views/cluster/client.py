"""Asks the views: whichever instance answers."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import httpx

from penstock.control import Control
from penstock.control.repositories.view_instances import ViewInstances
from penstock.errors import PenstockError
from penstock.views.api.server import token_of
from penstock.views.cluster.protocol import DEADLINE, SILENT_MS

TIMEOUT = 10.0
CONNECT_TIMEOUT = 2.0
# Seconds that an answer may take after the deadline of its request.
GRACE = 0.5
FIX = "see `penstock streams list`, apps views-1 and on"


class ViewsUnavailable(PenstockError):
    """No instance of the views answers."""


class ViewsTimeout(ViewsUnavailable):
    """An instance did not answer in time."""


def path_of(view: str, what: str = "") -> str:
    """Of a view, or of one of its ways: `search`, `counts`, `batch`."""
    return f"/v1/views/{quote(view, safe='')}" + (f"/{what}" if what else "")


def key_path(view: str, key: str) -> str:
    """Of a key, which may be of dots and slashes."""
    return path_of(view, f"rows/{quote(key, safe='').replace('.', '%2E')}")


def request(control: Control, path: str, body: Any = None, timeout: float = TIMEOUT) -> httpx.Response:
    """What the first instance says that can answer now; if none can, what the last one says against it.

    body: sent as JSON. timeout: seconds for all attempts. ViewsUnavailable; ControlError.
    """
    deadline = time.monotonic() + timeout
    token = token_of("127.0.0.1")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    failure = ViewsUnavailable("no instance of the views has reported to the control database", hint=FIX)
    refusal: httpx.Response | None = None
    now, instances = ViewInstances(control).read()
    with httpx.Client(headers=headers, trust_env=False) as client:
        for row in sorted(instances, key=lambda row: now - row.alive_at > SILENT_MS):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            http_timeout = httpx.Timeout(remaining + GRACE, connect=min(CONNECT_TIMEOUT, remaining))
            deadline_header = {DEADLINE: str(max(1, int(remaining * 1000)))}
            method = "GET" if body is None else "POST"
            try:
                answer = client.request(
                    method, row.url + path, json=body, headers=deadline_header, timeout=http_timeout
                )
            except httpx.ReadTimeout:
                failure = ViewsTimeout(
                    "the views do not answer in time", got=f"{row.name}: nothing within {remaining:.0f} s"
                )
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
                got = f"{row.name} at {row.url}: {type(e).__name__}"
                failure = ViewsUnavailable("no instance of the views answers", got=got, hint=FIX)
            else:
                if answer.status_code != 503:
                    return answer
                refusal = answer
    if refusal is not None:
        return refusal
    raise failure


def detail_of(answer: httpx.Response) -> str:
    """The error message of an answer."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
