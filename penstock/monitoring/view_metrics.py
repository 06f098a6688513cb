"""Figures of the views for Prometheus: what each instance keeps, and the requests that it has answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from penstock.control.repositories.view_instances import Sample
from penstock.monitoring.dashboard.model import StreamView
from penstock.views.api.request_metrics import COUNT, HELP, SECONDS

Value = tuple[str, tuple[str, ...], float | None]

# Beside those of its row, a stream's, in each instance.
VIEW = {
    "penstock_view_rows": "Keys that the instance keeps of the view.",
    "penstock_view_bytes": "Size of the view's store.",
    "penstock_view_lag_records": "Records of the view's topic that the instance has not read yet.",
    "penstock_view_age_seconds": "Time since an end of the topic was asked for that the instance has read to.",
}
REQUESTS = (COUNT, *(f"{SECONDS}_{kind}" for kind in ("bucket", "sum", "count")))


def view(s: StreamView) -> Iterator[Value]:
    """Of the row that a view has in an instance."""
    if s.reported_age_ms is None:
        return
    labels = (s.name.rpartition("@")[0], s.app)
    yield "penstock_view_rows", labels, s.state_rows
    yield "penstock_view_bytes", labels, s.state_bytes
    yield "penstock_view_lag_records", labels, s.lag
    yield "penstock_view_age_seconds", labels, None if s.watermark_age_ms is None else s.watermark_age_ms / 1000


def requests(counted: Mapping[str, Sequence[Sample]]) -> Iterator[Metric]:
    """Requests as the instances of the views have counted them."""
    families = {COUNT: Metric(COUNT, HELP[COUNT], "counter"), SECONDS: Metric(SECONDS, HELP[SECONDS], "histogram")}
    for app, samples in counted.items():
        for name, labels, value in samples:
            families[COUNT if name == COUNT else SECONDS].add_sample(name, {**labels, "app": app}, value)
    return (family for family in families.values() if family.samples)
