"""What instances of the views say of themselves in the control database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from sqlalchemy import delete, select, update

from penstock.control import tables as s
from penstock.control.client import Control
from penstock.control.database import bounded, rows, upsert

# Of a figure, as Prometheus has it: its name, its labels, its value.
Sample = tuple[str, Mapping[str, Any], float]


class ViewPartitions(TypedDict):
    """count: partitions of the view's topic; loaded: those that the instance can answer for."""

    count: int
    loaded: list[int]


@dataclass(frozen=True)
class ViewInstanceRow:
    """name: its app; url: how it is reached; alive_at: epoch ms by the database's clock; partitions: by view."""

    name: str
    number: int
    incarnation: str
    url: str
    alive_at: int = 0
    partitions: Mapping[str, ViewPartitions] = field(default_factory=dict)


class ViewInstances:
    """The views' part of the control database."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def report(self, row: ViewInstanceRow) -> tuple[int, list[ViewInstanceRow]]:
        """Say what an instance is and has loaded; the database's clock, and all instances."""
        values = {
            "number": row.number,
            "incarnation": row.incarnation,
            "url": row.url,
            "partitions": dict(row.partitions),
        }
        with self._control.begin() as c:
            upsert(c, s.view_instance, row.name, **values, alive_at=s.now_ms())
        return self.read()

    def read(self) -> tuple[int, list[ViewInstanceRow]]:
        """The database's clock, and all instances that were ever heard of and have not left, by number."""
        columns = [s.view_instance.c[f.name] for f in fields(ViewInstanceRow)]
        query = select(*columns).order_by(s.view_instance.c.number)
        with self._control.begin() as c:
            now = int(c.execute(select(s.now_ms())).scalar_one())
            return now, rows(ViewInstanceRow, c.execute(query).mappings())

    def report_request_metrics(self, name: str, samples: Sequence[Sample]) -> None:
        """Keep what an instance, which has reported before, has counted of its requests."""
        t = s.view_instance
        with self._control.begin() as c:
            values = bounded(t, {"request_metrics": [list(sample) for sample in samples]})
            c.execute(update(t).where(t.c.name == name).values(**values))

    def request_metrics(self, within_ms: int) -> dict[str, list[Sample]]:
        """By instance, what those have counted that were heard of within so many ms."""
        t = s.view_instance.c
        query = select(t.name, t.request_metrics).where(
            t.alive_at >= s.now_ms() - within_ms, t.request_metrics.is_not(None)
        )
        with self._control.begin() as c:
            return {
                name: [(of, labels, value) for of, labels, value in found or ()] for name, found in c.execute(query)
            }

    def leave(self, row: ViewInstanceRow) -> None:
        """Forget an instance that leaves in order."""
        t = s.view_instance.c
        with self._control.begin() as c:
            c.execute(delete(s.view_instance).where(t.name == row.name, t.incarnation == row.incarnation))
