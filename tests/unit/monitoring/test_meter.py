"""The meter: names, timer, isolation of probes, the bounded buffer."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from penstock.control import Control, ProgressRow
from penstock.errors import ControlError
from penstock.host.ports import free_port
from penstock.monitoring.collect.meter import Meter, until_due
from penstock.monitoring.collect.probes import ControlDatabaseProbe, HttpProbe, StreamsProbe
from penstock.monitoring.collect.samples import METRICS, Deltas, Sample, receipt, usable
from penstock.monitoring.collect.sender import Sender
from penstock.monitoring.dashboard.platform_status import PlatformStatusCache
from penstock.monitoring.dashboard.states import StateLimits
from tests.support.meter_control import STREAM, collect, filled

pytestmark = pytest.mark.processes


class Given:
    def __init__(self, name: str, pairs: Iterable[tuple[str, float | None]], error: Exception | None = None) -> None:
        self.name, self.pairs, self.error = name, pairs, error

    def measure(self) -> Iterator[tuple[str, float | None]]:
        yield from self.pairs
        if self.error:
            raise self.error


def test_a_receipt_has_the_form_of_the_source() -> None:
    assert receipt("prod", Sample("dbWaitTime", 1.25, 1_700_000_000_000)) == (
        b'{"environment":"prod","metric":"dbWaitTime","value":1.25,"timestamp":1700000000000}'
    )


def test_a_whole_number_is_sent_as_a_double() -> None:
    sent = next(usable([("kafkaTopics", 7)], 1))
    assert b'"value":7.0' in receipt("prod", sent)


def test_nan_and_none_are_not_sent() -> None:
    pairs = [("cpuBusy", None), ("cpuWait", math.nan), ("diskFree", math.inf), ("cpuSteal", 0.0)]
    assert list(usable(pairs, 5)) == [Sample("cpuSteal", 0.0, 5)]


@pytest.mark.parametrize("name", ["rowsPerSecond.visits@1", "cpu.driver.replacement.visits", "lag.Orders_2"])
def test_every_name_of_a_stream_or_part_is_taken(name: str) -> None:
    assert [sample.metric for sample in usable([(name, 1.0)], 5)] == [name]


@pytest.mark.parametrize("name", ["cpus.broker", "cpu.", "cpu.a:b", "dbWaitTime.x", "environment=prod"])
def test_an_unlisted_metric_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(name)):
        list(usable([(name, 1.0)], 1))


def test_metric_names_are_unambiguous_in_the_key_of_a_summary() -> None:
    # Summaries are keyed environment=prod:metric=dbWaitTime.
    assert all(re.fullmatch(r"[a-z][A-Za-z]*(\.<[a-z]+>)?", m.name) for m in METRICS)
    assert len({m.name for m in METRICS}) == len(METRICS)


def test_deltas_need_two_samples_and_survive_a_reset() -> None:
    d: Deltas[str] = Deltas()
    assert d.of({"a": 10}, at=100) == (0.0, {})
    assert d.of({"a": 11}, at=100.1) == (0.0, {})  # too soon: the first look stays the base
    assert d.of({"a": 25, "new": 3}, at=110) == (10, {"a": 15})
    assert d.of({"a": 4, "new": 5}, at=120) == (10, {"a": 4, "new": 2})


@pytest.mark.parametrize(
    ("now", "left"), [(30.0, 15.0), (31.0, 14.0), (44.5, 0.5), (44.9, 15.1), (44.9999, 15.0001), (45.02, 14.98)]
)
def test_samples_are_taken_at_multiples_of_the_interval(now: float, left: float) -> None:
    assert until_due(now, 15.0) == pytest.approx(left)


def test_a_failing_probe_is_counted_and_logged_once_and_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[bytes] = []
    bad = Given("bad", [("cpuBusy", 0.5)], OSError("no such disk"))
    good = Given("good", [("diskFree", 10.0)])
    meter = Meter([bad, good], sent.append, every=15, environment="test")
    with caplog.at_level("INFO"):
        for probe in (bad, bad, good):
            meter.measure(probe)
        bad.error = None
        meter.measure(bad)
    figures = [(r["metric"], r["value"]) for r in map(orjson.loads, sent)]
    assert figures[:2] == [("cpuBusy", 0.5), ("probeErrors.bad", 1.0)]
    assert ("probeErrors.good", 0.0) in figures
    assert figures[-1] == ("probeErrors.bad", 0.0)
    assert [r.getMessage() for r in caplog.records] == [
        "probe bad failed: OSError: no such disk",
        "probe bad measures again",
    ]
    assert meter.latest()["diskFree"].value == 10.0


def test_a_hanging_probe_delays_no_other() -> None:
    hang = threading.Event()

    class Hanging:
        name = "hanging"

        def measure(self) -> Iterator[tuple[str, float | None]]:
            hang.wait(20)
            return iter(())

    seen = threading.Semaphore(0)

    class Counting(Given):
        def measure(self) -> Iterator[tuple[str, float | None]]:
            seen.release()
            return super().measure()

    meter = Meter(
        [Hanging(), Counting("counting", [("diskFree", 1.0)])], lambda _: None, every=0.05, environment="test"
    )
    meter.start()
    try:
        assert all(seen.acquire(timeout=5) for _ in range(3))
    finally:
        meter.stop()
        hang.set()


def test_the_buffer_is_bounded_and_drops_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    sender = Sender("127.0.0.1:1", "receipts", buffer=3)
    for i in range(5):
        sender.put(b"%d" % i)
    assert list(sender._waiting) == [b"2", b"3", b"4"]
    assert sender.dropped == 2
    assert sender.produced() == (None, 2)
    assert sender.produced() == (None, 0)
    assert "1 receipts dropped" in caplog.text


def test_without_a_broker_the_sender_logs_once_and_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    sender = Sender(f"127.0.0.1:{free_port()}", "receipts")
    sender.put(b"x")
    sender.start()
    deadline = time.monotonic() + 10
    while "the broker did not answer" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.05)
    at = time.monotonic()
    assert sender.stop(600) == 1
    assert time.monotonic() - at < 60
    assert caplog.text.count("the broker did not answer") == 1


def test_stream_samples_come_from_the_control_database(control: Control) -> None:
    filled(control)
    probe = StreamsProbe(PlatformStatusCache(control, keep=0))
    first = dict(probe.measure())
    assert first["streamsWanted"] == 1
    assert first["streamsRunning"] == 1
    assert first[f"batchTime.{STREAM}"] == 250
    assert first[f"lag.{STREAM}"] == 12
    assert first[f"stateSize.{STREAM}"] == 2.0
    watermark_age = first[f"watermarkAge.{STREAM}"]
    assert watermark_age is not None
    assert 5 <= watermark_age < 15
    assert f"batchTime.{STREAM}" not in dict(probe.measure())  # no new batch
    assert list(usable(first.items(), 1))  # every name is listed


def test_an_old_report_gives_no_sample(control: Control) -> None:
    filled(control)
    probe = StreamsProbe(PlatformStatusCache(control, StateLimits(fresh_ms=50), keep=0))
    time.sleep(0.1)
    assert dict(probe.measure()) == {"streamsWanted": 1, "streamsRunning": 0}


def test_a_stream_without_watermark_or_state_has_no_such_sample(control: Control) -> None:
    filled(control)
    control.report([ProgressRow(STREAM, "quality", "x", state="starting", watermark=0)], keep=False)
    found = [s.metric for s in usable(StreamsProbe(PlatformStatusCache(control, keep=0)).measure(), 1)]
    assert sorted(found) == [f"rowsPerSecond.{STREAM}", "streamsRunning", "streamsWanted"]


def test_database_times_and_an_absent_database(control: Control) -> None:
    found = {s.metric: s.value for s in usable(ControlDatabaseProbe(filled(control)).measure(), 1)}
    assert found["dbErrors"] == 0
    assert found["dbWaitTime"] > 0
    assert found["dbQueryTime"] > 0

    away = ControlDatabaseProbe(Control(f"mysql+pymysql://penstock:secret@127.0.0.1:{free_port()}/x")).measure()
    assert next(away) == ("dbErrors", 1)
    with pytest.raises(ControlError) as e:
        next(away)
    assert "secret" not in str(e.value)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/")))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_http_latency_and_failures(web: str) -> None:
    endpoints = {"airflow": f"{web}/200", "page": f"{web}/404", "signIn": f"{web}/401"}
    found = dict(HttpProbe(endpoints, optional=frozenset({"page"})).measure())
    assert set(found) == {"httpTime.airflow", "httpErrors.airflow", "httpTime.signIn", "httpErrors.signIn"}
    assert found["httpErrors.airflow"] == 0

    failing = {"broken": f"{web}/503", "away": f"http://127.0.0.1:{free_port()}/", "airflow": f"{web}/200"}
    seen: dict[str, float | None] = {}
    measured = HttpProbe(failing).measure()
    with pytest.raises(ConnectionError, match=r"/503 answered 503; .*ConnectionRefusedError"):
        collect(measured, seen)
    assert seen.pop("httpTime.airflow")
    assert seen == {"httpErrors.broken": 1, "httpErrors.away": 1, "httpErrors.airflow": 0}
