"""An instance of the views in the tests' own process: its stores, routes and server are those of its driver."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.agents import ACTIVE_AGENTS, ALERTS, ASSIGNMENTS
from jobs.agents.views import AGENTS, ASSIGNED, LAST_ALERTS
from penstock.control import Control, ProgressRow
from penstock.control.repositories.view_instances import ViewInstanceRow, ViewInstances
from penstock.host.ports import free_port
from penstock.kafka.admin import admin, end_offsets, ensure_topics
from penstock.model.view import ServedView
from penstock.testing import Record, send
from penstock.views.api import routes
from penstock.views.api.query_pool import THREADS, QueryPool
from penstock.views.api.request_metrics import RequestMetrics
from penstock.views.api.server import ViewsServer
from penstock.views.api.service import ViewsService
from penstock.views.cluster.partition_assignment import partition_of
from penstock.views.cluster.peers import InstanceDirectory
from penstock.views.runner import ViewRun
from tests.support.wait import wait_until

VIEWS = {view.name: (view, topic) for view, topic in (
    (AGENTS, ACTIVE_AGENTS), (ASSIGNED, ASSIGNMENTS), (LAST_ALERTS, ALERTS),
)}  # fmt: skip
TOKEN = "open-sesame"


class Instance:
    """`views-1` of the fleet's views, as the app `agents` declares them, over topics of a broker."""

    def __init__(self, control: Control, bootstrap: str, folder: Path) -> None:
        ensure_topics([topic for _, topic in VIEWS.values()], bootstrap)
        self.bootstrap, self.port = bootstrap, free_port()
        row = ViewInstanceRow("views-1", 1, "of-a-test", f"http://127.0.0.1:{self.port}")
        self.runs = {
            view.name: ViewRun(
                ServedView(view, 1), topic, folder, bootstrap, ProgressRow(f"{view.name}@1", "views-1", "")
            )
            for view, topic in VIEWS.values()
        }
        self._pool, self._keys = QueryPool(), QueryPool()
        self._directory = InstanceDirectory(
            ViewInstances(control), row, lambda: {name: run.holds for name, run in self.runs.items()}
        )
        self.service = ViewsService("views-1", 1, VIEWS, self._directory, self._pool, self._keys)
        self.service.runs |= self.runs
        self.server = ViewsServer(
            routes.create_app(self.service, TOKEN), "127.0.0.1", self.port, TOKEN, RequestMetrics(VIEWS)
        )

    def start(self) -> None:
        self.server.start()
        self._directory.start()

    def load(self) -> None:
        for run in self.runs.values():
            run.reconcile()
        wait_until(lambda: len(self.service.ready[0]) == len(VIEWS))

    def close(self) -> None:
        self._directory.close()
        self.server.stop()
        for run in self.runs.values():
            run.stop()
        self._pool.close()
        self._keys.close()
        names = [topic.name for _, topic in VIEWS.values()]
        for done in admin(self.bootstrap).delete_topics(names).values():
            done.result(30)

    def put(self, view: str, rows: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Write values by key, and wait until they are seen."""
        topic, run = VIEWS[view][1], self.runs[view]
        send(
            self.bootstrap,
            [
                Record(
                    topic.name, key, value if value is None else json.dumps(value), partition_of(key, topic.partitions)
                )
                for key, value in rows.items()
            ],
        )
        places = [(topic.name, p) for p in range(topic.partitions)]
        ends = {p: end for (_, p), end in end_offsets(admin(self.bootstrap), places, self.bootstrap).items()}
        wait_until(lambda: {p: state.next for p, state in run.served.items()} == ends, what=f"{view} is up to date")

    @contextmanager
    def stuck(self) -> Iterator[None]:
        """All its threads are at work on what does not end."""
        go_on, at_work = threading.Event(), threading.Semaphore(0)

        def work() -> None:
            at_work.release()
            go_on.wait(60)

        for _ in range(THREADS):
            self._pool._threads.submit(work)
        for _ in range(THREADS):
            assert at_work.acquire(timeout=30)
        try:
            yield
        finally:
            go_on.set()
