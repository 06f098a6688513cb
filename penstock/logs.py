"""Logging of every process: text for people, JSON lines on demand, and what is WARN or worse to a chat channel.

Where a record concerns one place in Kafka, name it::

    log.warning("skipped", extra={"topic": "receipts", "partition": 3, "offset": 4711})

What a record says of a payload cannot look like another record, nor steer a terminal: see `printable`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

PLACE = ("topic", "partition", "offset")
FIELDS = (*PLACE, "stream", "app", "incarnation")

# Not through alerts: their own troubles would feed themselves.
log = logging.getLogger("penstock.alerts")


# Control characters but tab, separators of lines, marks that turn the direction of writing, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
INDENT = "    "


def printable(text: str) -> str:
    """A text in one line, with what a terminal or a reader takes for more than a character as `\\n`, `\\x1b`."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_json(line: str) -> str:
    """A line of JSON that means the same and has no such character: outside its texts there is none."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def lines(text: str) -> str:
    """As `printable`, but its own lines are kept; all but the first are indented, so that none begins a record."""
    return f"\n{INDENT}".join(printable(line) for line in text.split("\n"))


def _given(record: logging.LogRecord) -> dict[str, Any]:
    given = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
    return {name: printable(value) if isinstance(value, str) else value for name, value in given.items()}


def _subject(record: logging.LogRecord) -> str:
    """What a record concerns: the first argument of its format, if that is a text."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return first if isinstance(first, str) else ""


def _moment(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-01T00:00:00.000Z WARNING runner penstock.x: skipped [topic=receipts partition=3 offset=4711]`"""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_moment(record)} {record.levelname} {self.process} {record.name}: {record.getMessage()}"
        if given := _given(record):
            line += f" [{' '.join(f'{k}={v}' for k, v in given.items())}]"
        line = printable(line)
        if record.exc_info:
            line += f"\n{INDENT}" + lines(self.formatException(record.exc_info))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, process, logger, message, and topic, partition, offset where given."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname,
            "process": self.process,
            "logger": record.name,
            "message": record.getMessage(),
            **_given(record),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(found, default=str, ensure_ascii=False))


@dataclass(frozen=True)
class AlertLimits:
    """waiting: alerts kept while the channel is slow; per_minute: posts at most; repeat_after: seconds in which an
    alert that was posted is only counted when it comes again; attempts, timeout (seconds): of one post."""

    waiting: int = 100
    per_minute: int = 10
    repeat_after: float = 300.0
    attempts: int = 4
    timeout: float = 5.0


class AlertHandler(logging.Handler):
    """Posts records to a webhook as `{"text", "level", "process", "logger", "repeated", ...}`, from a thread.

    Never blocks nor fails the one who logs: what is too much is counted, and the next post says how much it was.
    Records are the same alert if their format is, and what they concern, which is its first text: `stream %s: %s`.
    """

    MINUTE = 60.0

    def __init__(
        self,
        url: str,
        process: str,
        limits: AlertLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logging.WARNING)
        self.url, self.process, self.limits, self.clock = url, process, limits or AlertLimits(), clock
        self.posted = self.failed = 0
        self._queue: Queue[dict[str, Any]] = Queue(self.limits.waiting)
        self._seen: dict[tuple[str, int, str, str], tuple[float, int]] = {}
        self._recent: list[float] = []
        self._suppressed = 0
        self._stop = Event()
        self._thread = Thread(target=self._run, name="alerts", daemon=True)
        self._thread.start()
        # A filter, as what posts must not wait for the lock of the one who closes.
        self.addFilter(lambda record: record.name != log.name and not record.name.startswith(("httpx", "httpcore")))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            repeated = self._admit((record.name, record.levelno, str(record.msg), _subject(record)), self.clock())
            if repeated is None:
                return
            self._queue.put_nowait(self._body(record, repeated))
            self._suppressed = 0
        except Full:
            self._suppressed += 1
        except Exception:
            self.handleError(record)

    def _admit(self, what: tuple[str, int, str, str], now: float) -> int | None:
        """How often it came since it was posted, or None if it must not be posted now. Called under the lock."""
        at, repeated = self._seen.get(what, (None, 0))
        if at is not None and now - at < self.limits.repeat_after:
            self._seen[what] = (at, repeated + 1)
            return None
        self._recent = [t for t in self._recent if now - t < self.MINUTE]
        if len(self._recent) >= self.limits.per_minute:
            self._suppressed += 1
            return None
        self._recent.append(now)
        if len(self._seen) > 1000:
            self._seen = {k: v for k, v in self._seen.items() if now - v[0] < self.limits.repeat_after}
        self._seen[what] = (now, 0)
        return repeated

    def _body(self, record: logging.LogRecord, repeated: int) -> dict[str, Any]:
        place = " ".join(f"{k}={v}" for k, v in _given(record).items())
        text = printable(f"{record.levelname} {self.process}: {record.getMessage()}" + (f" [{place}]" if place else ""))
        if repeated:
            text += f" (and {repeated} times more since it was last said)"
        if self._suppressed:
            text += f" ({self._suppressed} other alerts were not posted)"
        return {
            "text": text,
            "time": _moment(record),
            "level": record.levelname,
            "process": self.process,
            "logger": record.name,
            "repeated": repeated,
            "suppressed": self._suppressed,
            **_given(record),
        }

    def _run(self) -> None:
        # Imported here: a process without a webhook needs neither.
        import httpx
        from tenacity import (
            Retrying,
            retry_if_exception,
            sleep_using_event,
            stop_after_attempt,
            stop_when_event_set,
            wait_exponential,
        )

        def worth_retrying(e: BaseException) -> bool:
            if isinstance(e, httpx.HTTPStatusError):
                return e.response.status_code == 429 or e.response.status_code >= 500
            return isinstance(e, httpx.TransportError)

        retrying = Retrying(
            stop=stop_after_attempt(self.limits.attempts) | stop_when_event_set(self._stop),
            wait=wait_exponential(multiplier=0.2, max=10),
            retry=retry_if_exception(worth_retrying),
            sleep=sleep_using_event(self._stop),
            reraise=True,
        )

        def post(body: dict[str, Any]) -> None:
            # Each with a client of its own: making one fails too, as with a proxy that is no URL.
            httpx.post(self.url, json=body, timeout=self.limits.timeout).raise_for_status()

        while True:
            try:
                body = self._queue.get(timeout=0.2)
            except Empty:
                if self._stop.is_set():
                    return
                continue
            try:
                retrying(post, body)
                self.posted += 1
            except Exception as e:
                self.failed += 1
                # The URL is a secret of the channel: the error's own text names it.
                status = getattr(getattr(e, "response", None), "status_code", "")
                log.error("an alert could not be posted: %s %s", type(e).__name__, status)
            finally:
                self._queue.task_done()

    def close(self) -> None:
        """Post what waits, each tried once, for at most a second."""
        self._stop.set()
        self._thread.join(1.0)
        super().close()


def _check_webhook(url: str) -> None:
    """SettingError, without the URL, which is a secret, if alerts can never be posted there."""
    import httpx

    from penstock.errors import SettingError

    try:
        parts = httpx.URL(url)
        if parts.scheme in ("http", "https") and parts.host:
            return
    except httpx.InvalidURL:
        pass
    raise SettingError(
        "PENSTOCK_ALERT_WEBHOOK is no URL of HTTP",
        got="its value, or the URL of the connection that it names",
        hint="write the whole URL, http:// or https://, and restart the process",
    )


def setup(process: str, *, level: int = logging.INFO) -> None:
    """Log to stderr as this process, and to the alert webhook if the settings name one. Replaces earlier handlers."""
    # The command line prints through this module, and its help needs no settings.
    from penstock.errors import SettingError
    from penstock.settings import settings

    given = settings()
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter(process) if given.log_json else TextFormatter(process))
    handlers: list[logging.Handler] = [output]
    trouble = ""
    try:
        if url := given.secret("alert_webhook"):
            _check_webhook(url)
            handlers.append(AlertHandler(url, process))
    except SettingError as e:
        # Work goes on without alerts.
        trouble = str(e)
    logging.basicConfig(level=level, handlers=handlers, force=True)
    if trouble:
        log.error("alerts are not posted: %s", trouble)
    # One line for each request, and several for each look at the schema, would be most of the log.
    for name in ("httpx", "httpcore", "httpx2", "httpcore2", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
