"""What an instance counts of its requests; the meter shows it, for Prometheus, as the control database has it."""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock

from prometheus_client import Counter, Histogram
from starlette.types import Scope

from penstock.control.repositories.view_instances import Sample
from penstock.views.cluster.protocol import FORWARDED

COUNT, SECONDS = "penstock_view_requests_total", "penstock_view_request_seconds"
HELP = {
    COUNT: "Requests answered, since the instance began.",
    SECONDS: "From when a request's head was there until its answer was written.",
}
LABELS = ("view", "route", "caller")
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)


class RequestMetrics:
    """By view, route and who asks, a client or another instance. views: those that are declared; what is asked of any
    other, or is refused before it is known what is asked, counts for none."""

    def __init__(self, views: Collection[str]) -> None:
        self._views, self._lock = views, Lock()
        self._count = Counter(COUNT, HELP[COUNT], (*LABELS, "status"), registry=None)
        self._seconds = Histogram(SECONDS, HELP[SECONDS], LABELS, buckets=BUCKETS, registry=None)

    def take(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        view = scope.get("path_params", {}).get("view", "")
        route = getattr(scope.get("route"), "name", "")
        forwarded = any(name == FORWARDED.encode() for name, _ in scope["headers"])
        labels = (view if view in self._views else "", route, "instance" if forwarded else "client")
        with self._lock:
            self._count.labels(*labels, str(status)).inc()
            self._seconds.labels(*labels).observe(seconds)

    def samples(self) -> list[Sample]:
        with self._lock:
            samples = [
                sample
                for family in (self._count, self._seconds)
                for metric in family.collect()
                for sample in metric.samples
            ]
        return [
            (sample.name, sample.labels, sample.value) for sample in samples if not sample.name.endswith("_created")
        ]
