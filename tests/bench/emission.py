"""Time from a window's end until its final record is on the output topic, when the input is otherwise idle.

Ten-second windows without grace. One record falls into each, in its middle; then nobody sends, and the heartbeat that
is due at the window's end closes it. Measured is the moment a read-committed consumer has the final record, against the
window's end. Once with one windowed stream, once with six in one app, whose windows all end at the same moment.

    python -m tests.bench.emission [windows]
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.progress import track

from penstock import catalog
from penstock.control import Actor
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from penstock.streams import Stream
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from tests.bench.common import spread, table, write
from tests.chaos.drivers import Drivers, drivers

WINDOW_MS = 10_000
ME = Actor("benchmark", "cli")
WARM_UP = 3


class Source(threading.Thread):
    """One record in the middle of each window for each stream."""

    def __init__(self, streams: list[Stream], bootstrap: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._topics = [i.topic.name for s in streams for i in s.inputs.values() if i.topic]
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._stopped = stop

    def run(self) -> None:
        while True:
            now = int(time.time() * 1000)
            at = now // WINDOW_MS * WINDOW_MS + WINDOW_MS // 2
            at += WINDOW_MS if at <= now else 0
            if self._stopped.wait((at - now) / 1000):
                return
            for topic in self._topics:
                self._producer.produce(topic, json.dumps({"at": at}))
            self._producer.flush()


def measure(app_drivers: Drivers, app: str, windows: int) -> list[float]:
    """Seconds from each window's end to its record, of every stream of the app."""
    streams = [s for s in catalog.load().streams.values() if s.app == app]
    driver = app_drivers.launch(app)
    app_drivers.wait_running(driver)
    stop = threading.Event()
    beater = HeartbeatSender(catalog.build(streams).heartbeat_topics(), None, app_drivers.bootstrap)

    def beat() -> None:
        while not stop.wait(beater.run_once()):
            pass

    consumer = Consumer(
        {
            "bootstrap.servers": app_drivers.bootstrap,
            "group.id": f"bench-{app}",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(s.output_names[0], 0, 0) for s in streams])
    threading.Thread(target=beat, daemon=True).start()
    Source(streams, app_drivers.bootstrap, stop).start()
    delays: list[float] = []
    try:
        for _ in track(range((windows + WARM_UP) * len(streams)), f"{len(streams)} stream(s)"):
            while (message := consumer.poll(1)) is None or message.error():
                pass
            window = json.loads(message.value() or b"")["window"]
            delays.append(time.time() - (window + WINDOW_MS) / 1000)
    finally:
        stop.set()
        consumer.close()
        app_drivers.control.set_desired([s.name for s in streams], "off", ME)
    return delays[WARM_UP * len(streams) :]


def main(windows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with Broker(home=home, port=free_port(2)) as broker, MariaDB(home=home, port=free_port()) as mariadb:
            with drivers(broker, mariadb, home, PROJECT / "tests" / "bench" / "project") as app_drivers:
                delays = {
                    name: measure(app_drivers, app, windows)
                    for app, name in (("one", "one windowed stream"), ("six", "six in one app"))
                }
    rows = [[name, *spread(values)] for name, values in delays.items()]
    write("emission", table(["", "windows", "p50, s", "p99, s", "max, s"], rows), {"from a window's end, s": delays})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
