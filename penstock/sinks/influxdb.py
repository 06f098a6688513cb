"""InfluxDB 1.x, by its line protocol.

A point is its measurement, tags and time; fields that are written to it again overwrite the old ones and leave its
others alone. So rows that hold absolute values may be written any number of times.
https://docs.influxdata.com/influxdb/v1/write_protocols/line_protocol_reference/
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import httpx

from penstock.declare.lazy import F
from penstock.declare.outputs import NOTHING, Delivery, Mark, Output, Owner, Writer
from penstock.errors import SinkError, Wait
from penstock.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

# What InfluxDB's own documentation advises for one request.
LINES = 5000
TIMEOUT = 30.0
BUSY = {429, 503}


@dataclass(frozen=True)
class InfluxDB(Output):
    """A database of the InfluxDB that the settings name.

    line: the column that holds a line of the line protocol with its time in ms; rows without one are left out.
    """

    database: str
    line: str = "line"

    writer: ClassVar[str] = "penstock.sinks.influxdb:open_database"
    delivery: ClassVar[Delivery] = "upsert"

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
        return [F.col(self.line).alias("line")]


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
    ends that batch's requests, and puts points back to what they were until they are next written.

    url: of the server, with user and password where it asks for them.
    """

    def __init__(self, url: str, output: InfluxDB) -> None:
        self._output = output
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT)
        try:
            self._send("/query", {"q": f'CREATE DATABASE "{output.database}"'}, b"")
        except BaseException:
            self.close()
            raise

    def committed(self) -> Mark:
        """NOTHING: a batch that is run again is written again, and changes nothing."""
        return NOTHING

    def write(self, rows: Mapping[str, pa.Table], mark: Mark) -> int:  # noqa: ARG002
        """Write one batch; returns the number of lines. SinkError if the server refused any of them."""
        lines = rows[self._output.name]["line"].drop_null()
        for start in range(0, len(lines), LINES):
            chunk = lines.slice(start, LINES).to_pylist()
            self._send("/write", {"db": self._output.database, "precision": "ms"}, "\n".join(map(str, chunk)).encode())
        return len(lines)

    def _send(self, path: str, params: dict[str, str], body: bytes) -> None:
        url = self._client.base_url
        place = f"{url.host}:{url.port}, database {self._output.database}"
        try:
            answer = self._client.post(path, params=params, content=body)
        except httpx.HTTPError as e:
            raise SinkError(
                "InfluxDB did not answer",
                got=f"{type(e).__name__}: {e} at {place}",
                fix="see that it runs; the batch is written again",
            ) from e
        if answer.status_code in BUSY:
            after = answer.headers.get("Retry-After", "")
            raise Wait(
                "InfluxDB asks to wait",
                got=f"{answer.status_code} at {place}",
                seconds=float(after) if after.isdigit() else 1.0,
            )
        if answer.is_error:
            raise SinkError(
                "InfluxDB refused what was written",
                got=f"{answer.status_code} {answer.text.strip()[:500]} at {place}",
                fix="see its message; the batch is written again until it is taken",
            )

    def close(self) -> None:
        self._client.close()
