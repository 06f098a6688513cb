"""Requests to an InfluxDB 1.x, and what its answers mean."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import httpx

from penstock.errors import SinkError, Wait
from penstock.sinks.core.bulk import Retryable, retrying

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0
# A request is sent this often, then the whole batch waits.
TRIES = 3
PAUSE_S = 0.2
BUSY = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
# The whole reason: others quote names of measurements, which may contain anything.
EXPIRED = re.compile(r"partial write: points beyond retention policy dropped=[0-9]+")
ACCOUNT_HINT = "check that the user and password of the connection may read and write there, and restart the driver"
ADDRESS_HINT = "set PENSTOCK_INFLUXDB_URL to InfluxDB's own address, and restart the driver (penstock streams release)"
HINTS: dict[int, str] = {
    HTTPStatus.OK: ADDRESS_HINT,
    HTTPStatus.UNAUTHORIZED: ACCOUNT_HINT,
    HTTPStatus.FORBIDDEN: ACCOUNT_HINT,
    HTTPStatus.NOT_FOUND: "no action needed if the user may create databases; else let an admin create it",
}


class InfluxClient:
    """Requests to one database.

    They raise Wait if the server is away, busy or broken for the moment, and SinkError for what a person must fix.

    Args:
        url: of the server, with user and password if it asks for them.
        database: its name.

    Attributes:
        retried: number of requests sent again.
    """

    def __init__(self, url: str, database: str) -> None:
        self._client = _client(url)
        self.database = database
        self.retried = 0

    def create_database(self) -> None:
        """Create the database unless it exists."""
        answer = self._post("/query", {"q": f"CREATE DATABASE {quoted(self.database)}"})
        # Only an admin may create it. The first write tells whether it exists and may be written to.
        if answer.status_code == HTTPStatus.FORBIDDEN:
            return
        if wrong := [result["error"] for result in self._results(answer) if "error" in result]:
            raise SinkError(f"InfluxDB does not create database {self.database}", got=wrong[0])

    def write(self, body: bytes) -> str:
        """Write lines, with times in µs. Why some of them are refused; empty if all are written."""
        answer = self._post("/write", {"db": self.database, "precision": "u"}, body)
        if answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return "it is larger than InfluxDB, or a proxy before it, takes"
        if answer.status_code == HTTPStatus.BAD_REQUEST:
            reason = _reason(answer) or "InfluxDB refuses it without a reason"
            if not EXPIRED.match(reason):
                return reason
            # All others are written; these would have expired already.
            log.info("database %s does not keep points that are so old: %s", self.database, reason)
            return ""
        # Only this means that it is written: a redirect or a sign-in page does not.
        if answer.status_code != HTTPStatus.NO_CONTENT:
            raise self._refusal(answer, answer.text)
        return ""

    def query(self, text: str) -> Iterator[dict[str, Any]]:
        """The series that some statements select, with times in µs."""
        answer = self._post("/query", {"q": text, "db": self.database, "epoch": "u", "chunked": "true"})
        for result in self._results(answer):
            if "error" in result:
                hint = "see its message; if the database is gone, release the app: its driver creates it again"
                raise SinkError(
                    "InfluxDB does not answer a query", got=f"{result['error']} at {self.location}", hint=hint
                )
            yield from result.get("series", [])

    def _results(self, answer: httpx.Response) -> list[dict[str, Any]]:
        if answer.status_code != HTTPStatus.OK:
            raise self._refusal(answer, answer.text)
        try:
            return [result for line in answer.content.strip().split(b"\n") for result in json.loads(line)["results"]]
        except (ValueError, LookupError, TypeError):
            raise self._refusal(answer, "not an answer of an InfluxDB: " + answer.text) from None

    def _post(self, path: str, fields: Mapping[str, str], body: bytes | None = None) -> httpx.Response:
        """Send a request. fields: parameters of the URL, or, without a body, its form."""
        attempts = retrying(TRIES, PAUSE_S)
        try:
            return attempts(self._post_once, path, fields, body)
        except Retryable as e:
            raise self._wait(str(e)) from e
        finally:
            self.retried += attempts.statistics["attempt_number"] - 1

    def _post_once(self, path: str, fields: Mapping[str, str], body: bytes | None) -> httpx.Response:
        try:
            request = {"data": fields} if body is None else {"params": fields, "content": body}
            answer = self._client.post(path, **request)
        except httpx.TimeoutException as e:
            # The server may be executing it: asking again at once makes it no quicker.
            raise self._wait(f"{type(e).__name__} after {TIMEOUT_S:g} s") from e
        except httpx.HTTPError as e:
            raise Retryable(f"{type(e).__name__}: {e}") from e
        if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status_code not in BUSY:
            return answer
        reason = f"{answer.status_code} {_reason(answer)}"
        if after := answer.headers.get("Retry-After", ""):
            raise self._wait(reason, after)
        raise Retryable(reason)

    def _wait(self, reason: str, after: str = "") -> Wait:
        """after: the header Retry-After, which may also be a date."""
        return Wait(
            "InfluxDB cannot take anything at present",
            got=f"{reason.strip()} at {self.location}",
            seconds=max(1.0, float(after)) if after.isdecimal() and len(after) < 5 else 1.0,
        )

    def _refusal(self, answer: httpx.Response, reason: str) -> SinkError:
        return SinkError(
            "InfluxDB refused a request",
            got=f"{answer.status_code} {reason.strip()[:500]} at {self.location}",
            hint=ADDRESS_HINT if answer.is_redirect else HINTS.get(answer.status_code, "see its message"),
        )

    @property
    def location(self) -> str:
        url = self._client.base_url
        return f"{url.host}:{url.port}, database {self.database}"

    def close(self) -> None:
        self._client.close()


def quoted(name: str) -> str:
    """A name, quoted for InfluxQL."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def literal(text: str) -> str:
    """A string, quoted for InfluxQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])[:300]
    except (ValueError, LookupError, TypeError):
        return answer.text.strip()[:300]


def _client(url: str) -> httpx.Client:
    """A client. SinkError, without what may be a password, if the URL is malformed."""
    try:
        if httpx.URL(url).scheme in ("http", "https"):
            return httpx.Client(base_url=url, timeout=TIMEOUT_S)
    except httpx.InvalidURL:
        pass
    raise SinkError(
        "the connection influxdb is not a valid URL",
        got="the value of PENSTOCK_INFLUXDB_URL or AIRFLOW_CONN_INFLUXDB",
        hint="write http://user:password@host:8086, in the password %2F for /, %3F for ?, %23 for # and %40 for @",
    )
