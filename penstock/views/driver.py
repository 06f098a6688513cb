"""The driver of one instance of the views: a thread for each view's store, and an HTTP server before them.

`python -m penstock.views.driver --app views-1 --incarnation ID`. See `penstock.supervision.lifecycle` for its life.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from penstock.control import Control, ProgressRow
from penstock.control.repositories.view_instances import ViewInstanceRow, ViewInstances, ViewPartitions
from penstock.errors import HostError
from penstock.model.topic import topic_name
from penstock.model.view import views_instance
from penstock.settings import settings
from penstock.supervision.lifecycle import Driver
from penstock.views.api import routes
from penstock.views.api.query_pool import QueryPool
from penstock.views.api.request_metrics import RequestMetrics
from penstock.views.api.server import MAX_REQUESTS, ViewsServer, token_of
from penstock.views.api.service import ViewsService
from penstock.views.cluster.peers import InstanceDirectory
from penstock.views.runner import ViewRun

# Seconds: a request does not wait 5 ms, Python's default, for a thread that decodes records.
SWITCH_INTERVAL = 0.0005


class ViewsDriver(Driver):
    """Serves all views, as one of several instances."""

    HEALTH_SUBJECT: ClassVar[str] = "what answers"

    def __init__(self, app: str, incarnation: str, control: Control) -> None:
        super().__init__(app, incarnation, control)
        number = views_instance(app)
        assert number is not None
        s = settings()
        self._host, self._port = s.views_host, s.views_port + number - 1
        host = f"[{self._host}]" if ":" in self._host else self._host
        url = (s.views_url or f"http://{host}:{{port}}").replace("{port}", str(self._port)).rstrip("/")
        self._requests = RequestMetrics(self.catalog.views)
        row = ViewInstanceRow(app, number, incarnation, url)
        self._directory = InstanceDirectory(ViewInstances(control), row, self._holds, self._requests.samples)
        # As many as ask for keys are let in.
        self._pool, self._keys = QueryPool(), QueryPool(waiting=MAX_REQUESTS)
        self._service = ViewsService(app, number, self.catalog.views, self._directory, self._pool, self._keys)
        self._server: ViewsServer | None = None

    def open(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        token = token_of(self._host)
        self._server = ViewsServer(
            routes.create_app(self._service, token), self._host, self._port, token, self._requests
        )
        self._server.start()
        self._directory.start()

    def create_run(self, name: str, figures: ProgressRow) -> ViewRun:
        served = self.catalog.served_views[name]
        topic = self.catalog.topics[topic_name(served.view.topic)]
        root = settings().home / "views" / self.app
        run = ViewRun(served, topic, root, settings().bootstrap, figures)
        self._service.runs[served.view.name] = run
        return run

    def health_check(self) -> None:
        if self._service.stuck:
            raise HostError("a query does not end")
        if self._server is not None and not self._server.alive:
            raise HostError("the HTTP server has ended")

    def close(self) -> None:
        self._directory.close()
        if self._server is not None:
            self._server.stop()
        self._pool.close()
        self._keys.close()

    def _holds(self) -> dict[str, ViewPartitions]:
        return {name: run.holds for name, run in self._service.runs.items()}


if __name__ == "__main__":
    sys.exit(ViewsDriver.main())
