"""Prometheus metrics: the streams as the control database knows them, the platform as the meter last measured it.

Names and units follow Prometheus' conventions: base units, `_total` for counters. All are listed in STREAM, APP,
DRIVER, CAPTURE, SINK, BACKFILL, VIEW and SAMPLED_GAUGES, with their HELP texts, and in `delays` and `served`. A control
database that is away gives `penstock_control_up 0` and no figures of streams, never a failing scrape.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.control.repositories.captures import PHASES, CaptureRow
from penstock.control.repositories.view_instances import ViewInstances
from penstock.errors import ControlError, HostError
from penstock.model.view import views_instance
from penstock.monitoring.collect.delays import NAME as DELAYS
from penstock.monitoring.collect.samples import MIB, Sample, now_ms
from penstock.monitoring.dashboard.model import BackfillRunView, SinkView, StreamView
from penstock.monitoring.dashboard.platform_status import PlatformStatus, PlatformStatusCache
from penstock.monitoring.dashboard.states import HEALTHY_STATES, STATES
from penstock.monitoring.view_metrics import REQUESTS, VIEW, requests, view

log = logging.getLogger(__name__)

Labels = tuple[str, ...]

# HELP text by name. What ends in _total is a counter, all others are gauges.
STREAM = {
    "penstock_stream_desired": "Desired state of the stream: 1 is on.",
    "penstock_stream_up": "1 if the stream is running or idle.",
    "penstock_stream_state": "State of the stream, as the operator page shows it: 1 for the one it is in.",
    "penstock_stream_progress_age_seconds": "Time since the driver last reported.",
    "penstock_stream_batch_id": "Number of the last batch.",
    "penstock_stream_batch_duration_seconds": "Duration of the last batch.",
    "penstock_stream_batch_age_seconds": "Time since the last batch was committed.",
    "penstock_stream_rows_per_second": "Rows read per second.",
    "penstock_stream_rows_in_total": "Rows read since the first start.",
    "penstock_stream_rows_out_total": "Rows written since the first start.",
    "penstock_stream_late_records_total": "Records dropped as too late since the first start.",
    "penstock_stream_dead_letters_total": "Records sent to a dead-letter topic since the first start.",
    "penstock_stream_lost_records_total": "Records that were gone before they were read, at most, where that is known.",
    "penstock_stream_restarts_total": "Restarts of the stream.",
    "penstock_stream_lag_records": "Records of an input topic that are not read yet.",
    "penstock_stream_watermark_age_seconds": "How far the watermark is behind the clock.",
    "penstock_stream_state_rows": "Rows of state.",
    "penstock_stream_state_bytes": "Memory of the state store.",
}
APP = {
    "penstock_app_wanted": "1 if a stream of the app is wanted on.",
    "penstock_app_up": "1 if the app's own driver runs or drains and beat lately.",
    "penstock_app_release": "Number of the release that is asked for.",
    "penstock_app_drivers": "Drivers of the app that have not ended: two while one takes the other's place.",
    "penstock_app_restarts_total": "Drivers launched because one had ended without being told to.",
}
# Of the app's own driver: a label for each launch would be a new series for each launch, for ever.
DRIVER = {
    "penstock_driver_up": "1 if the driver runs or drains and beat lately.",
    "penstock_driver_beat_age_seconds": "Time since the driver's last sign of life.",
    "penstock_driver_launch_time_seconds": "When the driver was launched, Unix time.",
    "penstock_driver_release": "Number of the release the driver was launched under.",
}
# Beside those of its stream: its lag is the age of its watermark.
CAPTURE = {
    "penstock_capture_phase": "What the capture does: 1 for the phase it is in.",
    "penstock_capture_polls_total": "Polls since its driver opened it.",
    "penstock_capture_snapshot_rows": "Rows that its last snapshot has written.",
    "penstock_capture_snapshot_rows_expected": "Rows of the table when that snapshot began.",
    "penstock_capture_open_transaction_age_seconds": "Age of the oldest open transaction of its database, 0 if none.",
    "penstock_capture_owes": "1 if transactions open longer than HOLD are not waited for.",
    "penstock_capture_compared_rows": "Rows that the last comparison of table and topic looked at.",
    "penstock_capture_drift_rows": "Rows that the last comparison of table and topic repaired.",
    "penstock_capture_drift_explained": "1 if a change that was seen accounts for that drift, e.g. of the columns.",
    "penstock_capture_aside_rows": "Rows that are put aside now: too large for the topic, or with text that is none.",
    "penstock_capture_compared_time_seconds": "When the last comparison of table and topic ended, Unix time.",
}
# Beside those of its stream: its lag, and its dead letters.
SINK = {
    "penstock_sink_store_away_seconds": "For how long the sink has waited for its store, 0 if it does not.",
    "penstock_sink_written_per_second": "Documents written or deleted per second.",
    "penstock_sink_written_total": "Documents written or deleted since its driver began.",
    "penstock_sink_conflicts_total": "Documents that the store had newer versions of, since its driver began.",
    "penstock_sink_retried_total": "Documents sent again, since its driver began.",
    "penstock_sink_refused_total": "Documents that the store can never read_status, since its driver began.",
    "penstock_sink_bytes_total": "Bytes of documents sent since its driver began.",
    "penstock_sink_waits_total": "How often the store has asked to wait since its driver began.",
}
# Over the runs of a backfill, there may be some of several intervals at once; figures only while one goes on.
BACKFILL = {
    "penstock_backfill_running": "Runs of the backfill that go on.",
    "penstock_backfill_waiting": "Runs that go on and wait for something.",
    "penstock_backfill_failed": "Runs that failed in the last hour and were not begun again.",
    "penstock_backfill_silent": "Runs whose process has died within the last hour, as nothing is heard of it.",
    "penstock_backfill_files": "Files that the runs that go on are to read.",
    "penstock_backfill_files_done": "Files that they have read.",
    "penstock_backfill_rows": "Rows that the runs that go on are to read, as far as that is known.",
    "penstock_backfill_rows_done": "Rows that they have read.",
    "penstock_backfill_rows_per_second": "Rows that they read per second.",
    "penstock_backfill_left_seconds": "Time until the last of them is done, as estimated.",
}
DECLARED = {**STREAM, **APP, **DRIVER, **CAPTURE, **SINK, **BACKFILL, **VIEW}


_OF = (
    ({**APP, **DRIVER}, ("app",)),
    (CAPTURE, ("capture",)),
    (BACKFILL, ("backfill",)),
    (VIEW, ("view", "app")),
    ({**STREAM, **SINK}, ("stream", "app")),
)
_MORE = {
    "penstock_stream_state": "state",
    "penstock_stream_lag_records": "topic",
    "penstock_capture_phase": "phase",
    "penstock_capture_drift_rows": "kind",
}


def _labels(name: str) -> Labels:
    """The labels of a declared family."""
    common: Labels = next((labels for families, labels in _OF if name in families), ())
    return (*common, _MORE[name]) if name in _MORE else common


class SampledGauge(NamedTuple):
    """A receipts' metric as a gauge: its name, the factor to the base unit, the label of what follows the dot."""

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


def exported() -> set[str]:
    """Every series name the endpoint can give, the meter's own `process_*` aside."""
    delays = (f"{DELAYS}_{kind}" for kind in ("bucket", "sum", "count"))
    return {CONTROL_UP, *DECLARED, *delays, *REQUESTS, *(s.name for s in SAMPLED_GAUGES.values())}


class PlatformCollector(Collector):
    """Collects from the control database at each scrape, and from the latest samples.

    sampled: the latest sample of each metric; keep: seconds after which a sample is not shown any more.
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
        return [_family(CONTROL_UP, "", ()), *(_family(n, text, _labels(n)) for n, text in DECLARED.items())]

    def collect(self) -> Iterator[Metric]:
        try:
            now: PlatformStatus | None = self.status_cache.read()
            asked = ViewInstances(self.status_cache.control).request_metrics(60_000)
        except ControlError as e:
            now = None
            if self._was_up:
                log.warning("scrapes are without streams: %s", e)
        self._was_up = now is not None
        up = GaugeMetricFamily(CONTROL_UP, "1 if the control database answers.")
        up.add_metric((), float(self._was_up))
        yield up
        if now:
            captures = (_capture(now, row) for row in now.snap.captures.values())
            views = (view(stream) for stream in now.streams if views_instance(stream.app))
            values = chain(_apps(now), *captures, *map(_sink, now.view.sinks), _backfills(now.view.runs), *views)
            yield from _families(values)
            yield from requests(asked)
        yield from self._samples()

    def _samples(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        oldest = now_ms() - self.keep * 1000
        for metric, sample in sorted(self.sampled().items()):
            kind, _, of = metric.partition(".")
            shown = SAMPLED_GAUGES.get(kind)
            if shown and bool(of) == bool(shown.label) and sample.at_ms >= oldest:
                labels = (shown.label,) if shown.label else ()
                family = families.setdefault(shown.name, _family(shown.name, shown.help, labels))
                family.add_metric((of,) if of else (), sample.value * shown.factor)  # type: ignore[attr-defined]
        yield from families.values()


Value = tuple[str, Labels, float | None]


def _family(name: str, text: str, labels: Labels) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(name, text, labels=labels)


def _families(values: Iterable[Value]) -> Iterator[Metric]:
    families = {name: _family(name, text, _labels(name)) for name, text in DECLARED.items()}
    for name, labels, value in values:
        if value is not None:
            families[name].add_metric(labels, value)  # type: ignore[attr-defined]
    return (f for f in families.values() if f.samples)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _stream(s: StreamView) -> Iterator[Value]:
    def value(name: str, amount: float | None, *more: str) -> Value:
        return f"penstock_stream_{name}", (s.name, s.app, *more), amount

    yield value("desired", float(s.desired == "on"))
    yield value("up", float(s.state in HEALTHY_STATES))
    for state in STATES:
        yield value("state", float(s.state == state), state)
    if s.reported_age_ms is None:
        return
    yield value("progress_age_seconds", _seconds(s.reported_age_ms))
    yield value("batch_id", s.batch_id)
    yield value("batch_duration_seconds", _seconds(s.batch_ms))
    yield value("batch_age_seconds", _seconds(s.batch_age_ms))
    yield value("rows_per_second", s.rows_per_s)
    yield value("rows_in_total", s.rows_in)
    yield value("rows_out_total", s.rows_out)
    yield value("late_records_total", s.late)
    yield value("dead_letters_total", s.dead)
    yield value("lost_records_total", s.lost)
    yield value("restarts_total", s.restarts)
    yield value("watermark_age_seconds", _seconds(s.watermark_age_ms))
    yield value("state_rows", s.state_rows)
    yield value("state_bytes", s.state_bytes)
    for topic in s.topics:
        yield value("lag_records", topic.lag, topic.name)


def _apps(now: PlatformStatus) -> Iterator[Value]:
    drivers = [d for d in now.snap.drivers.values() if d.state != "ended"]
    up = {
        d.incarnation
        for d in drivers
        if d.state in ("running", "draining") and now.snap.now - d.alive_at <= now.limits.stuck_ms
    }
    incarnations = {app.name: app.incarnation for app in now.snap.apps}
    count = Counter(d.app for d in drivers)
    for app in now.view.apps:
        yield "penstock_app_wanted", (app.name,), float(app.desired == "on")
        yield "penstock_app_up", (app.name,), float(incarnations[app.name] in up)
        yield "penstock_app_release", (app.name,), app.release_seq
        yield "penstock_app_drivers", (app.name,), count[app.name]
        yield "penstock_app_restarts_total", (app.name,), app.restarts
        yield from chain.from_iterable(map(_stream, app.streams))
    for d in (d for d in drivers if incarnations.get(d.app) == d.incarnation):
        labels = (d.app,)
        yield "penstock_driver_up", labels, float(d.incarnation in up)
        yield "penstock_driver_beat_age_seconds", labels, max(0, now.snap.now - d.alive_at) / 1000
        yield "penstock_driver_launch_time_seconds", labels, d.launched_at / 1000
        yield "penstock_driver_release", labels, d.release_seq


def _capture(now: PlatformStatus, row: CaptureRow) -> Iterator[Value]:
    def value(name: str, amount: float | None, *more: str) -> Value:
        return f"penstock_capture_{name}", (row.name, *more), amount

    if not row.reported_at:
        return
    for phase in PHASES:
        yield value("phase", float(row.phase == phase), phase)
    yield value("polls_total", row.polls)
    yield value("snapshot_rows", row.snapshot_rows)
    yield value("snapshot_rows_expected", row.snapshot_total)
    yield value("open_transaction_age_seconds", max(0, now.snap.now - row.oldest_at) / 1000 if row.oldest_at else 0)
    yield value("aside_rows", row.aside["rows"] if row.aside else 0)
    yield value("owes", float(row.debt_until is not None))
    if row.drift:
        yield value("compared_rows", row.drift["rows"])
        yield value("compared_time_seconds", row.drift["ended"])
        for kind in ("missing", "differing", "extra"):
            yield value("drift_rows", row.drift[kind], kind)
        yield value("drift_explained", float(row.drift.get("explained", False)))


def _sink(s: SinkView) -> Iterator[Value]:
    def value(name: str, amount: float | None) -> Value:
        return f"penstock_sink_{name}", (s.name, s.app), amount

    away = s.health_age_ms if s.health == "away" else 0 if s.state in HEALTHY_STATES else None
    yield value("store_away_seconds", _seconds(away))
    yield value("written_per_second", s.written_per_s)
    yield value("written_total", s.written)
    yield value("conflicts_total", s.conflicts)
    yield value("retried_total", s.retried)
    yield value("refused_total", s.refused)
    yield value("bytes_total", s.bytes)
    yield value("waits_total", s.waits)


def _backfills(runs: Sequence[BackfillRunView]) -> Iterator[Value]:
    for name in sorted({run.name for run in runs}):
        of = [run for run in runs if run.name == name]
        live = [run for run in of if run.state in ("running", "waiting", "verifying")]
        figures: dict[str, float | None] = {
            "running": len(live),
            "waiting": len([run for run in live if run.state == "waiting"]),
            "failed": len([run for run in of if run.alarm and run.state == "failed"]),
            "silent": len([run for run in of if run.alarm and run.state == "silent"]),
        }
        if live:
            figures |= {
                "files": sum(run.files for run in live),
                "files_done": sum(run.files_done for run in live),
                "rows": sum(run.rows for run in live),
                "rows_done": sum(run.rows_done for run in live),
                "rows_per_second": sum(run.rate or 0.0 for run in live),
                "left_seconds": _seconds(max((run.left_ms for run in live if run.left_ms is not None), default=None)),
            }
        for figure, value in figures.items():
            yield f"penstock_backfill_{figure}", (name,), value


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
            hint="end what holds the port, or set PENSTOCK_METRICS_PORT",
        ) from e

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(1)

    return stop
