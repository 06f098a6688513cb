"""Requests to an InfluxDB 1.x: what its answers mean."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import httpx

from penstock.errors import SinkError, Wait

log = logging.getLogger(__name__)

TIMEOUT = 30.0
# Pauses in s before a request is made again; then the whole batch waits.
PAUSES = (0.2, 0.6)
LONGEST = 30.0
BUSY = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
# The whole reason, not a part of one: others quote names of measurements, which may say anything.
BEYOND = re.compile(r"partial write: points beyond retention policy dropped=[0-9]+")
ACCOUNT = "see that the user and password of the connection may read and write there, and start the driver anew"
MOVED = "set PENSTOCK_INFLUXDB_URL to InfluxDB's own address, and start the driver anew (penstock streams release)"
FIXES: dict[int, str] = {
    HTTPStatus.OK: MOVED,
    HTTPStatus.UNAUTHORIZED: ACCOUNT,
    HTTPStatus.FORBIDDEN: ACCOUNT,
    HTTPStatus.NOT_FOUND: "nothing, if the user may create databases; else let an admin create it",
}


class Influx:
    """One database. url: of the server, with user and password where it asks for them.

    Away, busy or broken for the moment is Wait; SinkError is what somebody must mend.
    """

    def __init__(self, url: str, database: str) -> None:
        self._client = _client(url)
        self.database = database
        self.retried = self.sent = 0
        self._waits = 0

    def create(self) -> None:
        """The database, if it is not there."""
        answer = self._post("/query", {"q": f"CREATE DATABASE {quoted(self.database)}"})
        # Only an admin may. Whether it is there, and may be written to, the first write tells.
        if answer.status_code == HTTPStatus.FORBIDDEN:
            return
        if wrong := [result["error"] for result in self._results(answer) if "error" in result]:
            raise SinkError(f"InfluxDB does not create database {self.database}", got=wrong[0])

    def write(self, body: bytes) -> str:
        """Write lines, times in µs; why some of them are refused, empty if all are written."""
        answer = self._post("/write", {"db": self.database, "precision": "u"}, body)
        self.sent += len(body)
        if answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return "it is larger than InfluxDB, or a proxy before it, takes"
        if answer.status_code == HTTPStatus.BAD_REQUEST:
            said = _said(answer) or "InfluxDB refuses it without a word"
            if not BEYOND.match(said):
                return said
            # All others are written; these would be gone already.
            log.info("database %s does not keep points that are so old: %s", self.database, said)
            return ""
        # Only this says that it is written: whoever redirects or shows a page to sign in has not.
        if answer.status_code != HTTPStatus.NO_CONTENT:
            raise self.refused(answer, answer.text)
        return ""

    def query(self, text: str) -> Iterator[dict[str, Any]]:
        """The series of the answers to some statements, times in µs."""
        answer = self._post("/query", {"q": text, "db": self.database, "epoch": "u", "chunked": "true"})
        for result in self._results(answer):
            if "error" in result:
                hint = "see its message; if the database is gone, release the app: its driver creates it again"
                raise SinkError("InfluxDB does not answer a query", got=f"{result['error']} at {self.place}", hint=hint)
            yield from result.get("series", [])

    def _results(self, answer: httpx.Response) -> list[dict[str, Any]]:
        if answer.status_code != HTTPStatus.OK:
            raise self.refused(answer, answer.text)
        try:
            return [result for line in answer.content.strip().split(b"\n") for result in json.loads(line)["results"]]
        except (ValueError, LookupError, TypeError):
            raise self.refused(answer, "no answer of an InfluxDB: " + answer.text) from None

    def _post(self, path: str, given: Mapping[str, str], body: bytes | None = None) -> httpx.Response:
        """given: parameters of the URL, or, without a body, its form."""
        for pause in (*PAUSES, None):
            try:
                if body is None:
                    answer = self._client.post(path, data=given)
                else:
                    answer = self._client.post(path, params=given, content=body)
            except httpx.TimeoutException as e:
                # It may be carrying it out: to ask once more at once makes it no quicker.
                raise self._wait(f"{type(e).__name__} after {TIMEOUT:g} s") from e
            except httpx.HTTPError as e:
                if pause is None:
                    raise self._wait(f"{type(e).__name__}: {e}") from e
            else:
                if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status_code not in BUSY:
                    self._waits = 0
                    return answer
                after = answer.headers.get("Retry-After", "")
                if pause is None or after:
                    raise self._wait(f"{answer.status_code} {_said(answer)}", after)
            self.retried += 1
            time.sleep(pause * random.uniform(0.5, 1.5))
        raise AssertionError

    def _wait(self, got: str, after: str = "") -> Wait:
        self._waits += 1
        grown = min(LONGEST, 2.0 ** min(self._waits - 1, 5)) * random.uniform(0.75, 1.25)
        return Wait(
            "InfluxDB takes nothing for the moment",
            got=f"{got.strip()} at {self.place}",
            seconds=max(1.0, float(after) if after.isdecimal() and len(after) < 5 else grown),
        )

    def refused(self, answer: httpx.Response, said: str) -> SinkError:
        return SinkError(
            "InfluxDB refused what was asked",
            got=f"{answer.status_code} {said.strip()[:500]} at {self.place}",
            hint=MOVED if answer.is_redirect else FIXES.get(answer.status_code, "see its message"),
        )

    @property
    def place(self) -> str:
        url = self._client.base_url
        return f"{url.host}:{url.port}, database {self.database}"

    def close(self) -> None:
        self._client.close()


def quoted(name: str) -> str:
    """A name as InfluxQL has it."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def literal(text: str) -> str:
    """A string as InfluxQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])[:300]
    except (ValueError, LookupError, TypeError):
        return answer.text.strip()[:300]


def _client(url: str) -> httpx.Client:
    """SinkError, which keeps what may be a password to itself, if it is no URL."""
    try:
        if httpx.URL(url).scheme in ("http", "https"):
            return httpx.Client(base_url=url, timeout=TIMEOUT)
    except httpx.InvalidURL:
        pass
    raise SinkError(
        "the connection influxdb is no URL of an InfluxDB",
        got="what PENSTOCK_INFLUXDB_URL or AIRFLOW_CONN_INFLUXDB holds",
        hint="write http://user:password@host:8086, in the password %2F for /, %3F for ?, %23 for # and %40 for @",
    )
