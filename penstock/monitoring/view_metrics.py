"""Requests answered by the instances of the views, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from penstock.control.repositories.view_instances import Sample
from penstock.views.api.request_metrics import COUNT, HELP, SECONDS

REQUESTS = (COUNT, *(f"{SECONDS}_{kind}" for kind in ("bucket", "sum", "count")))


def requests(samples_by_app: Mapping[str, Sequence[Sample]]) -> Iterator[Metric]:
    """Requests as the instances of the views have counted them."""
    families = {COUNT: Metric(COUNT, HELP[COUNT], "counter"), SECONDS: Metric(SECONDS, HELP[SECONDS], "histogram")}
    for app, samples in samples_by_app.items():
        for name, labels, value in samples:
            families[COUNT if name == COUNT else SECONDS].add_sample(name, {**labels, "app": app}, value)
    return (family for family in families.values() if family.samples)
