"""Logging: text, JSON, and alerts to a webhook that a real local HTTP server takes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from penstock import logs
from penstock.control import Fault
from penstock.host.ports import free_port
from penstock.logs import AlertHandler, AlertLimits
from penstock.monitoring.collect import probes
from penstock.monitoring.collect.probes import FaultsProbe
from penstock.settings import settings
from tests.support.wait import wait_until


class Channel:
    """A webhook: keeps what is posted; answers with the statuses given, then 200."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.open = threading.Event()
        self.open.set()
        channel = self

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                channel.open.wait(10)
                status = channel.statuses.pop(0) if channel.statuses else 200
                if status == 200:
                    channel.posts.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook/secret"

    def close(self) -> None:
        self.open.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def channel() -> Iterator[Channel]:
    given = Channel()
    yield given
    given.close()


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def attach(clock: list[float]) -> Iterator[Callable[..., tuple[logging.Logger, AlertHandler]]]:
    handlers = []
    log = logging.getLogger("penstock.test")
    log.propagate = False

    def made(url: str, **limits: Any) -> tuple[logging.Logger, AlertHandler]:
        handler = AlertHandler(url, "runner", AlertLimits(**limits), clock=lambda: clock[0])
        handlers.append(handler)
        log.addHandler(handler)
        return log, handler

    yield made
    for handler in handlers:
        log.removeHandler(handler)
        handler.close()
    log.propagate = True


@pytest.mark.processes
def test_warnings_reach_the_channel_with_their_place(channel: Channel, attach: Any) -> None:
    log, handler = attach(channel.url)
    log.info("not for the channel")
    log.warning("skipped %s", "a record", extra={"topic": "receipts", "partition": 0, "offset": 4711})
    wait_until(lambda: handler.posted)
    [post] = channel.posts
    assert post.pop("time").endswith("Z")
    assert post == {
        "text": "WARNING runner: skipped a record [topic=receipts partition=0 offset=4711]",
        "level": "WARNING", "process": "runner", "logger": "penstock.test", "repeated": 0, "suppressed": 0,
        "topic": "receipts", "partition": 0, "offset": 4711,
    }  # fmt: skip


@pytest.mark.processes
def test_the_same_alert_is_posted_once_and_then_with_its_count(
    channel: Channel, attach: Any, clock: list[float]
) -> None:
    log, handler = attach(channel.url, repeat_after=300)
    for i in range(50):
        log.error("batch %d failed", i)
    wait_until(lambda: handler.posted == 1)
    clock[0] += 301
    log.error("batch %d failed", 50)
    wait_until(lambda: handler.posted == 2)
    assert [p["text"] for p in channel.posts] == [
        "ERROR runner: batch 0 failed",
        "ERROR runner: batch 50 failed (and 49 times more since it was last said)",
    ]


@pytest.mark.processes
def test_the_same_trouble_of_two_streams_is_two_alerts(channel: Channel, attach: Any) -> None:
    log, handler = attach(channel.url)
    for name in ("a", "b", "a"):
        log.error("stream %s is blocked: %s", name, "gap")
    wait_until(lambda: handler.posted == 2)
    assert [p["text"] for p in channel.posts] == [
        "ERROR runner: stream a is blocked: gap",
        "ERROR runner: stream b is blocked: gap",
    ]


@pytest.mark.processes
def test_every_fault_is_posted(channel: Channel, attach: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log, handler = attach(channel.url)
    monkeypatch.setattr(probes, "log", log)
    faults = [
        Fault(kind, name, "app", "failing", "x") for kind, name in (("app", "a"), ("stream", "a"), ("stream", "b"))
    ]
    cache: Any = SimpleNamespace(
        read=lambda: SimpleNamespace(view=SimpleNamespace(faults=faults)),
        control=SimpleNamespace(note_faults=lambda given: (given, [])),
    )
    assert list(FaultsProbe(cache).measure()) == [("faults", 3)]
    wait_until(lambda: handler.posted == 3)
    assert [p["text"] for p in channel.posts] == [
        f"WARNING runner: fault: {name} is failing: x" for name in ("app a", "stream a", "stream b")
    ]


@pytest.mark.processes
def test_a_flood_is_limited_and_counted(channel: Channel, attach: Any, clock: list[float]) -> None:
    log, handler = attach(channel.url, per_minute=3)
    for i in range(10):
        log.warning(f"trouble {i}")
    wait_until(lambda: handler.posted == 3)
    clock[0] += 61
    log.warning("later")
    wait_until(lambda: handler.posted == 4)
    assert channel.posts[-1]["text"] == "WARNING runner: later (7 other alerts were not posted)"


@pytest.mark.processes
def test_a_slow_channel_blocks_nobody_and_the_queue_is_bounded(channel: Channel, attach: Any) -> None:
    log, handler = attach(channel.url, per_minute=1000, waiting=5)
    channel.open.clear()
    for i in range(200):
        log.warning(f"trouble {i}")
    assert handler.posted == 0
    assert handler._queue.qsize() <= 5
    channel.open.set()
    wait_until(lambda: handler.posted >= 5)
    wait_until(lambda: handler._queue.unfinished_tasks == 0)
    log.warning("after")
    wait_until(lambda: "after" in channel.posts[-1]["text"])
    # Each says how many were lost since the one before it.
    assert sum(post["suppressed"] for post in channel.posts) == 200 - (len(channel.posts) - 1)


@pytest.mark.processes
def test_a_failing_channel_is_retried(channel: Channel, attach: Any) -> None:
    channel.statuses = [503, 429]
    log, handler = attach(channel.url)
    log.warning("trouble")
    wait_until(lambda: handler.posted == 1)
    assert len(channel.posts) == 1


@pytest.mark.processes
def test_a_refusing_channel_is_not_retried_and_its_url_is_not_logged(
    channel: Channel, attach: Any, caplog: pytest.LogCaptureFixture
) -> None:
    channel.statuses = [403]
    log, handler = attach(channel.url)
    log.warning("trouble")
    wait_until(lambda: handler.failed == 1)
    assert channel.posts == []
    wait_until(lambda: "could not be posted: HTTPStatusError 403" in caplog.text)
    assert "secret" not in caplog.text


@pytest.mark.processes
def test_an_impossible_url_fails_each_alert_and_not_the_thread(attach: Any, caplog: pytest.LogCaptureFixture) -> None:
    log, handler = attach("https://chat:80secret/hook")
    log.warning("first")
    log.warning("second")
    wait_until(lambda: handler.failed == 2, 5)
    assert handler._thread.is_alive()
    assert caplog.text.count("could not be posted: InvalidURL") == 2
    assert "secret" not in caplog.text


@pytest.mark.processes
def test_an_absent_channel_does_not_delay_the_end(attach: Any) -> None:
    log, handler = attach(f"http://127.0.0.1:{free_port()}/", attempts=50)
    log.warning("trouble")
    handler.close()
    # Fifty attempts take minutes.
    handler._thread.join(60)
    assert not handler._thread.is_alive()
    assert handler.failed == 1


@pytest.fixture
def root() -> Iterator[None]:
    found = logging.getLogger()
    handlers, level = found.handlers[:], found.level
    yield
    for handler in [h for h in found.handlers if h not in handlers]:
        found.removeHandler(handler)
        handler.close()
    found.handlers[:] = handlers
    found.setLevel(level)
    settings.cache_clear()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    "url", ["https://chat:80secret/x", "chat.example/secret", "ftp://chat/secret", "https:///secret"]
)
def test_a_webhook_that_is_no_url_is_told_and_stops_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_ALERT_WEBHOOK", url)
    settings.cache_clear()
    logs.setup("meter")
    told = capsys.readouterr().err
    assert "alerts are not posted: PENSTOCK_ALERT_WEBHOOK is no URL of HTTP; got: " in told
    assert "secret" not in told
    assert not any(isinstance(handler, AlertHandler) for handler in logging.getLogger().handlers)


@pytest.mark.processes
@pytest.mark.usefixtures("root")
def test_setup_writes_text_or_json_and_finds_the_webhook(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.cache_clear()
    logs.setup("meter")
    logging.getLogger("penstock.x").info("hello", extra={"topic": "t", "offset": 0})
    assert capsys.readouterr().err.endswith("Z INFO meter penstock.x: hello [topic=t offset=0]\n")

    monkeypatch.setenv("PENSTOCK_LOG_JSON", "true")
    monkeypatch.setenv("PENSTOCK_ALERT_WEBHOOK", f"{channel.url}\n")
    settings.cache_clear()
    logs.setup("meter")
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("penstock.x").exception("failed", extra={"topic": "t", "partition": 1, "offset": 2})
    line = orjson.loads(capsys.readouterr().err)
    assert line.pop("time")
    assert "ValueError: odd" in line.pop("exception")
    assert line == {
        "level": "ERROR", "process": "meter", "logger": "penstock.x", "message": "failed",
        "topic": "t", "partition": 1, "offset": 2,
    }  # fmt: skip
    wait_until(lambda: channel.posts)
    assert channel.posts[0]["text"] == "ERROR meter: failed [topic=t partition=1 offset=2]"
