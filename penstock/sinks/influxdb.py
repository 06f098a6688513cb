"""InfluxDB 1.x, by its line protocol.

A point is its measurement, tags and time; fields that are written to it again overwrite the old ones and leave its
others alone. So rows that hold absolute values may be written any number of times.
https://docs.influxdata.com/influxdb/v1/write_protocols/line_protocol_reference/
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import httpx

from penstock.errors import SinkError
from penstock.kafka.output import NONE, Mark

if TYPE_CHECKING:
    from penstock.kafka.output import Message

# What InfluxDB's own documentation advises for one request.
LINES = 5000
TIMEOUT = 30.0


class InfluxWriter:
    """Writes rows, each one line of the protocol with its time in ms, into a database that it creates if need be.

    url: of the server, with user and password where it asks for them.
    """

    def __init__(self, url: str, database: str) -> None:
        self._database = database
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT)
        try:
            self._send("/query", {"q": f'CREATE DATABASE "{database}"'}, b"")
        except BaseException:
            self.close()
            raise

    def committed(self) -> Mark:
        """None: a batch that is run again is written again, and changes nothing."""
        return NONE

    def write(self, messages: Iterable[Message], mark: Mark) -> int:  # noqa: ARG002
        """Write one batch; returns the number of lines. SinkError if the server refused any of them."""
        count = 0
        lines = (m.value for m in messages if m.value is not None)
        while chunk := list(islice(lines, LINES)):
            self._send("/write", {"db": self._database, "precision": "ms"}, b"\n".join(chunk))
            count += len(chunk)
        return count

    def _send(self, path: str, params: dict[str, str], body: bytes) -> None:
        place = f"{self._client.base_url.host}:{self._client.base_url.port}, database {self._database}"
        try:
            answer = self._client.post(path, params=params, content=body)
        except httpx.HTTPError as e:
            raise SinkError(
                "InfluxDB did not answer",
                got=f"{type(e).__name__}: {e} at {place}",
                fix="see that it runs; the batch is written again",
            ) from e
        if answer.is_error:
            raise SinkError(
                "InfluxDB refused what was written",
                got=f"{answer.status_code} {answer.text.strip()[:500]} at {place}",
                fix="see its message; the batch is written again until it is taken",
            )

    def close(self) -> None:
        self._client.close()
