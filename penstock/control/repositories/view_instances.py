"""Instances of the views, as they report themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from sqlalchemy import delete, select, update

from penstock.control import tables as s
from penstock.control.client import Control
from penstock.control.database import bounded, rows, upsert

Sample = tuple[str, Mapping[str, Any], float]
"""A sample of Prometheus: name, labels, value."""


class ViewPartitions(TypedDict):
    """Partitions of a view's topic: their `count`, and those that an instance has `loaded`."""

    count: int
    loaded: list[int]


@dataclass(frozen=True)
class ViewInstanceRow:
    """An instance.

    Attributes:
        name: Its app.
        url: Its address for other instances.
        alive_at: Its last report, in epoch ms by the database's clock.
        partitions: By view.
    """

    name: str
    number: int
    incarnation: str
    url: str
    alive_at: int = 0
    partitions: Mapping[str, ViewPartitions] = field(default_factory=dict)


class ViewInstances:
    """The table of view instances in the control database."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def report(self, row: ViewInstanceRow) -> tuple[int, list[ViewInstanceRow]]:
        """Report an instance; returns as `read` does."""
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
        """The database's clock, and all instances that have not left, by number."""
        columns = [s.view_instance.c[f.name] for f in fields(ViewInstanceRow)]
        query = select(*columns).order_by(s.view_instance.c.number)
        with self._control.begin() as c:
            now = int(c.execute(select(s.now_ms())).scalar_one())
            return now, rows(ViewInstanceRow, c.execute(query).mappings())

    def report_request_metrics(self, name: str, samples: Sequence[Sample]) -> None:
        """Store the request metrics of an instance that has reported before."""
        t = s.view_instance
        with self._control.begin() as c:
            values = bounded(t, {"request_metrics": [list(sample) for sample in samples]})
            c.execute(update(t).where(t.c.name == name).values(**values))

    def request_metrics(self, within_ms: int) -> dict[str, list[Sample]]:
        """The request metrics of instances that reported within the last `within_ms` milliseconds."""
        t = s.view_instance.c
        query = select(t.name, t.request_metrics).where(
            t.alive_at >= s.now_ms() - within_ms, t.request_metrics.is_not(None)
        )
        with self._control.begin() as c:
            return {
                name: [(figure, labels, value) for figure, labels, value in samples or ()]
                for name, samples in c.execute(query)
            }

    def leave(self, row: ViewInstanceRow) -> None:
        """Delete an instance that shuts down."""
        t = s.view_instance.c
        with self._control.begin() as c:
            c.execute(delete(s.view_instance).where(t.name == row.name, t.incarnation == row.incarnation))
