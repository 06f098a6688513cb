"""Prometheus metrics of the streams, from the model of the operator page, and of the platform, from the latest samples.

Names and units follow Prometheus' conventions: base units, `_total` for counters. The metrics of the model are declared
in `penstock.monitoring.metrics`. While the control database does not answer, a scrape gives `penstock_control_up 0` and
no metric of streams; it does not fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.control.repositories.view_instances import Sample as RequestSample
from penstock.control.repositories.view_instances import ViewInstances
from penstock.errors import ControlError, HostError
from penstock.monitoring.collect.delays import NAME as DELAYS
from penstock.monitoring.collect.samples import MIB, Sample, now_ms
from penstock.monitoring.dashboard.platform_status import PlatformStatus, PlatformStatusCache
from penstock.monitoring.metrics import GROUPS, Group, Reading
from penstock.views.api.request_metrics import COUNT, HELP, SECONDS

log = logging.getLogger(__name__)


class SampledGauge(NamedTuple):
    """A sampled metric as a gauge: its name, the factor to the base unit, and the label for what follows the dot."""

    name: str
    factor: float
    help: str
    label: str = ""


SAMPLED_GAUGES: dict[str, SampledGauge] = {
    "cpu": SampledGauge("penstock_part_cpu_cores", 1, "CPU seconds used per second.", "part"),
    "memory": SampledGauge("penstock_part_memory_bytes", MIB, "Resident memory of the part.", "part"),
    "cpuBusy": SampledGauge("penstock_machine_cpu_busy_ratio", 1, "CPU time neither idle nor waiting for a disk."),
    "cpuWait": SampledGauge("penstock_machine_cpu_wait_ratio", 1, "CPU time idle while waiting for a disk."),
    "memoryAvailable": SampledGauge(
        "penstock_machine_memory_available_bytes", MIB, "Memory available without swapping."
    ),
    "diskFree": SampledGauge("penstock_machine_disk_free_bytes", MIB, "Free space where the platform keeps its data."),
    "diskBusy": SampledGauge("penstock_disk_busy_ratio", 1, "Time the disk had work.", "disk"),
    "diskWaitTime": SampledGauge("penstock_disk_wait_seconds", 1e-3, "Mean time of a read or write.", "disk"),
    "dbWaitTime": SampledGauge("penstock_control_round_trip_seconds", 1e-3, "Trivial query to the control database."),
    "httpTime": SampledGauge("penstock_http_response_seconds", 1e-3, "GET of an endpoint of the platform.", "endpoint"),
    "httpErrors": SampledGauge("penstock_http_failed", 1, "1 if the last GET of the endpoint failed.", "endpoint"),
    "kafkaProduceTime": SampledGauge(
        "penstock_kafka_produce_seconds", 1e-3, "Slowest acknowledged receipt of a sample."
    ),
    "kafkaAppendRate": SampledGauge(
        "penstock_kafka_appended_per_second", 1, "Growth of the end offsets of all topics."
    ),
    "kafkaTopics": SampledGauge("penstock_kafka_topics", 1, "Topics."),
    "kafkaPartitions": SampledGauge("penstock_kafka_partitions", 1, "Partitions."),
    "kafkaUnderReplicated": SampledGauge(
        "penstock_kafka_under_replicated_partitions", 1, "Partitions not fully in sync."
    ),
    "probeErrors": SampledGauge("penstock_probe_failed", 1, "1 if the meter's probe failed last time.", "probe"),
}
CONTROL_UP = "penstock_control_up"
REQUESTS = (COUNT, *(f"{SECONDS}_{kind}" for kind in ("bucket", "sum", "count")))


def exported() -> set[str]:
    """The names of all series of the endpoint, except the process metrics of the collector itself."""
    delays = (f"{DELAYS}_{kind}" for kind in ("bucket", "sum", "count"))
    declared = (group.prefix + metric.name for group in GROUPS for metric in group.metrics)
    return {CONTROL_UP, *declared, *delays, *REQUESTS, *(s.name for s in SAMPLED_GAUGES.values())}


class PlatformCollector(Collector):
    """Collects from the control database at each scrape, and from the latest samples.

    Args:
        status_cache: The status of the platform.
        sampled: Gives the latest sample of each metric.
        keep: Seconds after which a sample is no longer exported.
    """

    def __init__(
        self,
        status_cache: PlatformStatusCache,
        sampled: Callable[[], Mapping[str, Sample]] = dict,
        *,
        keep: float = 60.0,
    ) -> None:
        self.status_cache, self.sampled, self.keep = status_cache, sampled, keep
        self._was_up = True

    def describe(self) -> Iterable[Metric]:
        """The names, so that registering needs no database."""
        return [_family(CONTROL_UP, "", ()), *(_declared(group, m) for group in GROUPS for m in group.metrics)]

    def collect(self) -> Iterator[Metric]:
        try:
            status: PlatformStatus | None = self.status_cache.read()
            request_samples = ViewInstances(self.status_cache.control).request_metrics(60_000)
        except ControlError as e:
            status = None
            if self._was_up:
                log.warning("scrapes are without streams: %s", e)
        self._was_up = status is not None
        up = GaugeMetricFamily(CONTROL_UP, "1 if the control database answers.")
        up.add_metric((), float(self._was_up))
        yield up
        if status:
            for group in GROUPS:
                yield from _collected(group, status)
            yield from _view_requests(request_samples)
        yield from self._samples()

    def _samples(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        oldest = now_ms() - self.keep * 1000
        for name, sample in sorted(self.sampled().items()):
            kind, _, part = name.partition(".")
            gauge = SAMPLED_GAUGES.get(kind)
            if gauge and bool(part) == bool(gauge.label) and sample.at_ms >= oldest:
                labels = (gauge.label,) if gauge.label else ()
                family = families.setdefault(gauge.name, _family(gauge.name, gauge.help, labels))
                family.add_metric((part,) if part else (), sample.value * gauge.factor)  # type: ignore[attr-defined]
        yield from families.values()


def _view_requests(samples_by_app: Mapping[str, Sequence[RequestSample]]) -> Iterator[Metric]:
    """Requests as the instances of the views have counted them."""
    families = {COUNT: Metric(COUNT, HELP[COUNT], "counter"), SECONDS: Metric(SECONDS, HELP[SECONDS], "histogram")}
    for app, samples in samples_by_app.items():
        for name, labels, value in samples:
            families[COUNT if name == COUNT else SECONDS].add_sample(name, {**labels, "app": app}, value)
    return (family for family in families.values() if family.samples)


def _family(name: str, text: str, labels: tuple[str, ...]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(name, text, labels=labels)


def _declared(group: Group, metric: Reading) -> Metric:
    labels = (*group.labels, metric.label) if metric.label else group.labels
    return _family(group.prefix + metric.name, metric.help, labels)


def _collected(group: Group, status: PlatformStatus) -> Iterator[Metric]:
    items = list(group.items(status))
    for metric in group.metrics:
        family = _declared(group, metric)
        for labels, item in items:
            value = metric.read(item)
            samples = value if isinstance(value, Mapping) else {"": value}
            for label_value, amount in samples.items():
                if amount is not None:
                    family.add_metric((*labels, label_value) if metric.label else labels, float(amount))  # type: ignore[attr-defined]
        if family.samples:
            yield family


def serve(collectors: Sequence[Collector], port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve http://host:port/metrics in a thread until the returned function is called. HostError if it cannot."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as e:
        raise HostError(
            f"the Prometheus endpoint cannot listen on {host}:{port}",
            got=e.strerror or e,
            hint="stop the process that uses the port, or set PENSTOCK_METRICS_PORT",
        ) from e

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(1)

    return stop
