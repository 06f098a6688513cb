"""The meter: one small process that samples the platform, sends receipts and serves Prometheus.

Each probe has a thread of its own, so that a hanging probe delays no other. Samples are taken at multiples of the
interval, so that they do not drift. `penstock.monitoring.collect.samples.METRICS` lists all metrics.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock, Thread
from typing import NoReturn

from penstock import logs
from penstock.control import Control, connect
from penstock.errors import PenstockError
from penstock.host import session
from penstock.monitoring.collect.delays import Delays
from penstock.monitoring.collect.host import HostProbe, ProcessProbe
from penstock.monitoring.collect.probes import (
    ControlDatabaseProbe,
    FaultsProbe,
    HttpProbe,
    KafkaProbe,
    SenderProbe,
    StreamsProbe,
)
from penstock.monitoring.collect.samples import RECEIPTS, Probe, Sample, now_ms, receipt, usable
from penstock.monitoring.collect.sender import Sender
from penstock.monitoring.dashboard.platform_status import PlatformStatusCache
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.prometheus import PlatformCollector, serve
from penstock.settings import Settings, settings

PAGE = "/penstock/"

log = logging.getLogger("penstock.monitoring.collect.meter")


class Meter:
    """Measures with every probe at each multiple of `every` seconds, and once at the start.

    put: takes each receipt; must not block.
    """

    REMIND = 600.0  # seconds after which a probe that keeps failing is logged again

    def __init__(
        self, probes: Sequence[Probe], put: Callable[[bytes], None], *, every: float, environment: str
    ) -> None:
        self.probes, self.put, self.every, self.environment = probes, put, every, environment
        self._stop, self._lock = Event(), Lock()
        self._latest: dict[str, Sample] = {}
        self._failing: dict[str, float] = {}

    def start(self) -> None:
        for i, probe in enumerate(self.probes):
            # One after the other, so that no probe measures the load of the next one.
            phase = i * min(0.2, self.every / (2 * len(self.probes)))
            Thread(target=self._keep_measuring, args=(probe, phase), name=f"probe-{probe.name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def latest(self) -> Mapping[str, Sample]:
        """The latest sample of each metric."""
        with self._lock:
            return dict(self._latest)

    def _keep_measuring(self, probe: Probe, phase: float) -> None:
        while not self._stop.is_set():
            self.measure(probe)
            self._stop.wait(until_due(time.time() - phase, self.every))

    def measure(self, probe: Probe) -> list[Sample]:
        """Take and send the samples of one probe; if it fails, those that it took before."""
        samples: list[Sample] = []
        try:
            for pair in probe.measure():
                samples.extend(usable([pair], now_ms()))
        except Exception as e:  # an error of a probe must not affect others
            self._failed(probe.name, e)
            failed = 1.0
        else:
            if self._failing.pop(probe.name, None) is not None:
                log.info("probe %s measures again", probe.name)
            failed = 0.0
        samples.extend(usable([(f"probeErrors.{probe.name}", failed)], now_ms()))
        if not self._stop.is_set():
            with self._lock:
                self._latest.update({s.metric: s for s in samples})
            for sample in samples:
                self.put(receipt(self.environment, sample))
        return samples

    def _failed(self, name: str, e: Exception) -> None:
        logged_at, now = self._failing.get(name), time.monotonic()
        if logged_at is None or now - logged_at >= self.REMIND:
            self._failing[name] = now
            log.warning("probe %s failed: %s: %s", name, type(e).__name__, e)


def until_due(now: float, every: float) -> float:
    """Seconds from `now` (epoch seconds) to the next multiple of `every`; to the one after if it is due this moment,
    since a timer that woke a little early must not sample twice."""
    wait = every - now % every
    return wait if wait > every / 50 else wait + every


def drivers_here(status_cache: PlatformStatusCache) -> dict[int, str]:
    """App by pid of the drivers on this host."""
    here = session.host()
    rows = status_cache.read().snap.drivers.values()
    return {d.pid: d.app for d in rows if d.pid and d.state != "ended" and d.host == here}


def build_probes(to: Settings, control: Control, status_cache: PlatformStatusCache, sender: Sender) -> list[Probe]:
    """The probes of a platform with these settings."""
    endpoints = {"airflow": f"{to.airflow_url}/api/v2/monitor/health", "page": f"{to.airflow_url}{PAGE}"}
    return [
        HostProbe(to.home),
        ProcessProbe(to.home / "run", lambda: drivers_here(status_cache)),
        ControlDatabaseProbe(control),
        HttpProbe(endpoints, optional=frozenset({"page"})),
        KafkaProbe(to.bootstrap),
        StreamsProbe(status_cache),
        FaultsProbe(status_cache, to.page_url),
        SenderProbe(sender.produced),
    ]


def run(to: Settings | None = None, stop: Event | None = None) -> None:
    """Measure until SIGTERM, SIGINT or `stop`; ends within a second of it. HostError if the port is taken."""
    to = to or settings()
    stop = stop or Event()
    control = connect(to.control)
    status_cache = PlatformStatusCache(control, StateLimits.of(to))
    sender = Sender(to.bootstrap, RECEIPTS)
    meter = Meter(
        build_probes(to, control, status_cache, sender),
        sender.put,
        every=to.measure_every,
        environment=to.environment,
    )
    collector = PlatformCollector(status_cache, meter.latest, keep=4 * to.measure_every)
    delays = Delays(to.bootstrap, to.delays)
    stop_serving = serve([collector, delays.histogram], to.metrics_port, to.metrics_host)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sender.start()
    meter.start()
    delays.start()
    log.info(
        "measuring every %g s: receipts to topic %s at %s, metrics at http://%s:%d/metrics",
        to.measure_every, RECEIPTS, to.bootstrap, to.metrics_host, to.metrics_port,
    )  # fmt: skip
    stop.wait()
    meter.stop()
    delays.stop()
    closing = Thread(target=stop_serving, name="closing", daemon=True)  # takes half a second, as sending may
    closing.start()
    unsent = sender.stop()
    closing.join()
    log.log(
        logging.WARNING if unsent else logging.INFO,
        "ended: %d receipts sent, %d dropped, %d not sent", sender.sent, sender.dropped + sender.failed, unsent,
    )  # fmt: skip


def main() -> NoReturn:
    """The main function of the process."""
    logs.setup("meter")
    status = 0
    try:
        run()
    except PenstockError as e:
        log.error("%s", e)
        status = 1
    # Everything is sent and logged. To close the Kafka clients would take half a second more.
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
