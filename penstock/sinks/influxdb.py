"""InfluxDB 1.x, by its line protocol.

A point is its measurement, tags and time; fields that are written to it again overwrite the old ones and leave its
others alone. So rows that hold absolute values may be written any number of times.
https://docs.influxdata.com/influxdb/v1/write_protocols/line_protocol_reference/
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar

import httpx

from penstock.declare.lazy import F
from penstock.declare.outputs import NOTHING, Delivery, Mark, Output, Owner, Writer
from penstock.errors import DeclarationError, SinkError, Wait
from penstock.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

# What InfluxDB's own documentation advises for one request.
LINES = 5000
# Less than a reverse proxy takes by default (nginx: 1 MiB), and than InfluxDB does (25 MB).
BYTES = 1_000_000
TIMEOUT = 30.0
BUSY = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
# InfluxDB says nothing when it skips a comment, or gives a line without a time its own clock's: a point for each try.
LINE = re.compile(rb"\s*[^#\s].*[^\\] -?[0-9]+\s*", re.DOTALL)
ACCOUNT = "see that the user and password in PENSTOCK_INFLUXDB_URL may write there, and start the driver anew"
MOVED = "set PENSTOCK_INFLUXDB_URL to InfluxDB's own address, and start the driver anew (penstock streams release)"
FIXES: dict[int, str] = {
    HTTPStatus.OK: MOVED,
    HTTPStatus.UNAUTHORIZED: ACCOUNT,
    HTTPStatus.FORBIDDEN: ACCOUNT,
    HTTPStatus.NOT_FOUND: "nothing, if the user may create databases; else let an admin create it",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: f"let it, and proxies before it, take {BYTES} bytes, and each single line",
}


@dataclass(frozen=True)
class InfluxDB(Output):
    """A database of the InfluxDB that the settings name.

    line: the column that holds a line of the line protocol with its time in ms; rows whose line is NULL are left out,
    one without a time, or that is a comment or empty, is refused.
    """

    database: str
    line: str = "line"

    writer: ClassVar[str] = "penstock.sinks.influxdb:open_database"
    delivery: ClassVar[Delivery] = "upsert"

    def __post_init__(self) -> None:
        if not (self.database and self.line):
            raise DeclarationError("an InfluxDB output needs a database and a column", got=self, fix="InfluxDB('name')")

    @property
    def name(self) -> str:
        return f"influxdb:{self.database}"

    @property
    def keyed(self) -> bool:
        return True

    @property
    def store(self) -> Hashable:
        return self.name

    def columns(self) -> list[Column]:
        # As bytes: a STRING of Spark need not be UTF-8, and Arrow's text must be.
        return [F.col(self.line).cast("string").cast("binary").alias("line")]


def open_database(owner: Owner, outputs: Sequence[Output]) -> Writer:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, InfluxDB)
    if not (url := settings().influxdb_url.get_secret_value()):
        raise SinkError(
            f"no InfluxDB is known to write {output.name} to",
            got="PENSTOCK_INFLUXDB_URL is not set",
            fix="set it to http://user:password@host:8086, and start the driver anew (penstock streams release)",
        )
    return InfluxWriter(url, output)


class InfluxWriter:
    """Writes lines into a database, which it creates if need be.

    Nothing fences another writer there: a driver that was paused in the middle of a batch and wakes up behind its heir
    ends that batch's requests, and puts points back to what they were until they are next written. So may the server
    itself, if it hung for longer than TIMEOUT with a request and carries it out behind later ones.

    url: of the server, with user and password where it asks for them.
    """

    def __init__(self, url: str, output: InfluxDB) -> None:
        self._output = output
        self._client = _client(url)
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def committed(self) -> Mark:
        """NOTHING: a batch that is run again is written again, and changes nothing."""
        return NOTHING

    def write(self, rows: Mapping[str, pa.Table], mark: Mark) -> int:  # noqa: ARG002
        """Write one batch; returns the number of lines. SinkError if any of them is refused, here or by the server."""
        given = rows.get(self._output.name)
        lines = [line for line in given["line"].to_pylist() if line is not None] if given is not None else []
        if mute := [line for line in lines if not LINE.fullmatch(line)]:
            raise SinkError(
                f"{len(mute)} lines for {self._output.name} have no time, or are comments or empty",
                got=repr(mute[0].decode(errors="replace")[:300]),
                fix="let the transform end each with its time in ms; a row whose line is NULL is left out",
            )
        for body in _bodies(lines):
            answer = self._post("/write", {"db": self._output.database, "precision": "ms"}, body)
            # Only this says that it is written: whoever redirects or shows a page to sign in has not.
            if answer.status_code != HTTPStatus.NO_CONTENT:
                raise self._refused(answer, answer.text)
        return len(lines)

    def _create(self) -> None:
        name = self._output.database.replace("\\", "\\\\").replace('"', '\\"')
        answer = self._post("/query", {"q": f'CREATE DATABASE "{name}"'}, b"")
        if answer.status_code == HTTPStatus.FORBIDDEN:
            # Only an admin may. Whether it is there, and may be written to, the first write tells.
            return
        if answer.status_code != HTTPStatus.OK:
            raise self._refused(answer, answer.text)
        try:
            wrong = [result["error"] for result in answer.json()["results"] if "error" in result]
        except (ValueError, LookupError, TypeError):
            raise self._refused(answer, "no answer of an InfluxDB: " + answer.text) from None
        if wrong:
            raise SinkError(f"InfluxDB does not create database {self._output.database}", got=wrong[0])

    def _post(self, path: str, params: dict[str, str], body: bytes) -> httpx.Response:
        """Its answer, whatever that is but a request to wait."""
        try:
            answer = self._client.post(path, params=params, content=body)
        except httpx.HTTPError as e:
            raise SinkError(
                "InfluxDB did not answer",
                got=f"{type(e).__name__}: {e} at {self._place}",
                fix="see that it runs; the batch is written again",
            ) from e
        if answer.status_code in BUSY:
            after = answer.headers.get("Retry-After", "")
            raise Wait(
                "InfluxDB asks to wait",
                got=f"{answer.status_code} at {self._place}",
                seconds=max(1.0, float(after)) if after.isdecimal() else 1.0,
            )
        return answer

    def _refused(self, answer: httpx.Response, said: str) -> SinkError:
        return SinkError(
            "InfluxDB refused what was written",
            got=f"{answer.status_code} {said.strip()[:500]} at {self._place}",
            fix=MOVED
            if answer.is_redirect
            else FIXES.get(answer.status_code, "see its message; the batch is written again until it is taken"),
        )

    @property
    def _place(self) -> str:
        url = self._client.base_url
        return f"{url.host}:{url.port}, database {self._output.database}"

    def close(self) -> None:
        self._client.close()


def _client(url: str) -> httpx.Client:
    """SinkError, which keeps what may be a password to itself, if it is no URL."""
    try:
        if httpx.URL(url).scheme in ("http", "https"):
            return httpx.Client(base_url=url, timeout=TIMEOUT)
    except httpx.InvalidURL:
        pass
    raise SinkError(
        "PENSTOCK_INFLUXDB_URL is no URL of an InfluxDB",
        fix="write it as http://user:password@host:8086, in the password %2F for /, %3F for ?, %23 for # and %40 for @",
    )


def _bodies(lines: Sequence[bytes]) -> Iterator[bytes]:
    """The lines in requests that are not too large; a line that is larger by itself has its own."""
    body: list[bytes] = []
    size = 0
    for line in lines:
        if body and (len(body) == LINES or size + len(line) >= BYTES):
            yield b"\n".join(body)
            body, size = [], 0
        body.append(line)
        size += len(line) + 1
    if body:
        yield b"\n".join(body)
