"""An instance of one view, without a broker and a network."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from penstock.control import ProgressRow
from penstock.control.repositories.view_instances import ViewInstanceRow
from penstock.model.topic import Topic
from penstock.model.view import ServedView, View
from penstock.tables.topic_reader import table_schema
from penstock.views.api import routes
from penstock.views.api.query_pool import QueryPool
from penstock.views.api.request_metrics import RequestMetrics
from penstock.views.api.server import AccessGuard
from penstock.views.api.service import ViewsService
from penstock.views.cluster.partition_assignment import partition_of
from penstock.views.cluster.peers import InstanceDirectory
from penstock.views.runner import PartitionState, ViewRun

TOPIC = Topic("things", partitions=2, compacted=True)
SCHEMA = "town STRING, n INT, f FLOAT, at TIMESTAMP, day DATE, open BOOLEAN, tags MAP<STRING,STRING>"
THINGS = View("things", TOPIC, SCHEMA, query_by=("town", "n", "f", "at", "day", "open", "tags"))
KEYS = ("a", "b", "c/d", "é")


class Doors:
    """An instance of one view, without a broker and a network."""

    def __init__(self, folder: Path, view: View = THINGS, token: str = "") -> None:
        self.run = ViewRun(ServedView(view, 1), TOPIC, folder, "", ProgressRow(view.name, "views-1", ""))
        self.run.store.begin("id", 2, 5, {0: 0, 1: 0})
        self.run.store.reached(6)
        self.run.count, self.run._assigned, self.run._thread = 2, [0, 1], threading.current_thread()
        self.run.served = {p: PartitionState(0, 0, time.monotonic(), self.run.store.generation) for p in (0, 1)}
        self.pools = QueryPool(), QueryPool(waiting=768)
        directory = InstanceDirectory(None, ViewInstanceRow("views-1", 1, "a", ""), dict)  # type: ignore[arg-type]
        self.service = ViewsService("views-1", 1, [view.name], directory, *self.pools)
        self.service.runs[view.name] = self.run
        self.app = AccessGuard(
            routes.create_app(self.service, token), token, ["localhost"], RequestMetrics([view.name])
        )

    def put(self, *rows: dict[str, Any]) -> None:
        for p in (0, 1):
            own = [{"_deleted": False, **row} for row in rows if partition_of(row["key"], 2) == p]
            table = pa.Table.from_pylist(own, schema=table_schema(self.run.view.fields))
            self.run.store.apply({p: table}, {p: len(own)})

    def asked(self, way: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async def all_of_it() -> Any:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await way(client)

        return asyncio.run(all_of_it())

    def ask(self, what: str, body: Any = None, **given: Any) -> httpx.Response:
        path = f"/v1/views/{self.run.view.name}/{what}"
        found: httpx.Response = self.asked(
            lambda client: client.get(path, **given) if body is None else client.post(path, json=body, **given)
        )
        return found
