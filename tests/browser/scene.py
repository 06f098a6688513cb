"""A control database as an operator meets it on a bad day: most streams run, one of each trouble is there too."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert, update

from penstock.catalog import build
from penstock.control import Actor, Control, ProgressRow
from penstock.control import tables as s
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.model.capture import APP as CAPTURES
from penstock.model.capture import Capture, parse
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput
from penstock.supervision.code_snapshot import digest_of, pack

APPS = {
    "agents": ["agent-offline", "assignments"],
    "captures": ["accounts", "tests"],
    "metrics": ["bundles", "summaries"],
    "presence": ["enriched-walk-ins", "walk-ins"],
    "quality": ["topic-quality"],
    "sessions": ["session-alerts"],
    "sinks": ["shop-points", "shop-search"],
}
HUNG, FAILING, OFF = "presence", "summaries", "session-alerts"
ERROR = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 812.0 failed 1 times
Caused by: org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before the position for \
partition receipts-1 could be determined
	at org.apache.spark.sql.kafka010.consumer.InternalKafkaConsumer.fetch(KafkaDataConsumer.scala:122)
	at org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer.$anonfun$get$1(KafkaDataConsumer.scala:319)"""

AWAY = "shop-search"
REFUSES = "Elasticsearch at es:9200 does not answer; got: <img src=x onerror=alert(1)> " + "x" * 400
STORES: dict[str, dict[str, Any]] = {
    "shop-points": {
        "destination": "influxdb:shop.names", "dead_letter_topics": ["shop-points-dead-letter"],
        "written": 41_200_000, "conflicts": 613,
        "retried": 12, "refused": 3, "bytes": 6_100_000_000, "waits": 2, "written_per_s": 1_240.0, "retried_per_s": 0.0,
    },
    AWAY: {
        "destination": "elasticsearch:shops-of-all-towns", "dead_letter_topics": ["unfit-shops"],
        "written": 900, "conflicts": 0,
        "retried": 4_410, "refused": 0, "bytes": 120_000, "waits": 31, "written_per_s": 0.0, "retried_per_s": 31.0,
        "answered_at": None,
    },
}  # fmt: skip

RUNNING = "order-replay 2025-12-31T00..2026-01-01T00 -> orders"
WAITS = "first-year ..2026-01-01T00 -> order-minutes"
DONE = "order-replay 2026-01-01T00..2026-01-02T00 -> orders"
SILENT = "order-replay 2026-01-02T00.. -> orders"
FAILED = "first-year .. -> order-minutes (dry)"
REFUSED = "BackfillError: a file is not as its manifest says; got: <img src=x onerror=alert(1)>\n" + "x" * 300

# Of the first release of `metrics`.
CODE = {"jobs/metrics/before.py": b"RATE = 1\n"}
SUPERVISOR = Actor("streams_agents/scheduled__2026-11-21T05:07:38.123456+00:00/supervise/1", "supervisor")


def _capture(name: str) -> Capture:
    select = f"SELECT id, name, changed FROM {name}"
    text = f"CAPTURE INTO {name} FROM mysql demo KEY (id) CURSOR changed EVERY 1 SECOND OVERLAP 1 SECOND AS {select}"
    return parse(text, Path(f"{name}.sql"))


def _stream(name: str, app: str) -> Stream:
    minute = timedelta(minutes=1)
    output = TopicOutput(Topic(name), "key", "value")
    return Stream(name, app, {"rows": Input(Topic(f"{name}-in"))}, lambda rows: rows, output, EmitFinal(minute, minute))


# Of the time of a batch, ms.
PARTS: dict[str, Any] = {"offsets_ms": 12, "planning_ms": 64, "processing_ms": 268, "checkpoint_ms": 21}


class Scene:
    """Fills a control database and keeps its live drivers reporting, as real drivers would."""

    def __init__(self, url: str, logs: Path) -> None:
        self.control = Control(url)
        self.logs = logs
        self.live: list[str] = []
        self.rows: list[ProgressRow] = []
        self.ahead: dict[str, int] = {}
        """By stream, how many ms its watermark is ahead of where it should be"""
        self._quiet = threading.Event()
        self._thread: threading.Thread | None = None

    def fill(self) -> None:
        c = self.control
        c.migrate()
        streams = (_stream(name, app) for app, names in APPS.items() for name in names if app != CAPTURES)
        c.sync(build(streams, map(_capture, APPS[CAPTURES])))
        c.record(Actor("olga", "cli"), "start", "topic-quality")
        c.record(SUPERVISOR, "launch", "quality", "driver of release 0")
        c.release("metrics", Actor("olga", "airflow"), "p90 by nearest rank")
        c.store_snapshot(digest_of(CODE), pack(CODE))
        c.record_first_code("metrics", 0, digest_of(CODE), Actor("olga", "cli"))
        c.set_desired([OFF], "off", Actor("tomas", "page"), "alert rules are being moved, back on Monday")
        now = c.now()
        incarnations = {app: self._launch(app, now) for app in APPS if app != "sessions"}
        for number, (app, names) in enumerate(APPS.items()):
            for offset, name in enumerate(names):
                self._figures(name, app, incarnations.get(app, ""), number + offset * 0.5, now)
        self._captures(now)
        self._runs(now)
        self._faults(now)
        self._silence(incarnations[HUNG], [r for r in self.rows if r.app == HUNG], now - 95_000)
        for name, beat in {"receipts": 3, "probe-requests": 1, "check-ins": 12, "browser-sessions": 48}.items():
            c.record_heartbeat(name, now - beat * 1000, 4, "triggerer@pond:2211")
        c.hold_heartbeats("browser-sessions", now - 48_000, "sessions is down")
        c.record(
            SUPERVISOR,
            "launch",
            "agents",
            "the driver before it was killed: hung for 31 s",
        )

    def start(self) -> None:
        """Report every half second until `quiet`; every ten seconds for the history too."""
        self._quiet.clear()
        self.report()
        self._thread = threading.Thread(target=self._keep_reporting, daemon=True)
        self._thread.start()

    def quiet(self) -> None:
        self._quiet.set()
        if self._thread:
            self._thread.join(10)
            self._thread = None

    def report(self, *, keep: bool = True) -> None:
        now = self.control.now()
        for incarnation in self.live:
            self.control.report_driver_alive(incarnation)
        rows = [r for r in self.rows if r.incarnation in self.live]
        for row in rows:
            row.batch_id = (row.batch_id or 0) + 1
            row.batch_at = now - (row.batch_ms or 0) // 3
            row.watermark = now - 11_000 + self.ahead.get(row.name, 0)
            row.rows_in += int(row.rows_per_s / 2)
            if row.store is not None and row.name != AWAY:
                row.store["answered_at"] = now - 400
        self.control.report(rows, keep=keep)
        for run in (RUNNING, WAITS):
            self.control.report_backfill(run)

    @contextmanager
    def app_of(self, app: str, name: str) -> Iterator[ProgressRow]:
        """An app that runs one thing, and is there until the end."""
        now = self.control.now()
        with self.control.engine.begin() as c:
            c.execute(insert(s.app).values(name=app, release_seq=0, restarts=0))
            c.execute(insert(s.stream).values(name=name, app=app, desired="on", changed_at=now))
        incarnation = self._launch(app, now)
        self._figures(name, app, incarnation, 0, now)
        row = self.rows[-1]
        try:
            yield row
        finally:
            self.rows.remove(row)
            self.live.remove(incarnation)
            with self.control.engine.begin() as c:
                for t, key, value in (
                    (s.history, "name", name), (s.progress, "name", name), (s.stream, "name", name),
                    (s.driver, "app", app), (s.app, "name", app),
                ):  # fmt: skip
                    c.execute(t.delete().where(t.c[key] == value))

    def _keep_reporting(self) -> None:
        for number in itertools.count(1):
            if self._quiet.wait(0.5):
                return
            self.report(keep=number % 20 == 0)

    def _launch(self, app: str, now: int) -> str:
        incarnation = self.control.claim(
            app,
            None,
            host="pond",
            spec_hash="5d41402a",
            owner=f"supervise_{app}/supervise",
            log=str(self.logs / f"{app}.log"),
        )
        assert incarnation is not None
        began = now - {"agents": 41 * 60_000, "metrics": 8 * 60_000}.get(app, 3 * 86_400_000)
        self.control.update_driver(incarnation, pid=4000 + len(app), state="running", launched_at=began)
        if app == "agents":
            with self.control.engine.begin() as c:
                c.execute(update(s.app).where(s.app.c.name == app).values(restarts=2))
        if app != HUNG:
            self.live.append(incarnation)
        return incarnation

    def _captures(self, now: int) -> None:
        drift = {"missing": 0, "differing": 2, "extra": 1, "rows": 41_200, "ended": now / 1000 - 3600}
        well = CaptureRow("accounts", phase="polling", polls=911, oldest_at=now - 400_000, drift=drift)
        Captures(self.control).report(well)
        Captures(self.control).report(CaptureRow("tests", phase="snapshot", snapshot_rows=9_000, snapshot_total=25_000))

    def _faults(self, now: int) -> None:
        """One that lasts for two hours, and one that lasted for twenty minutes."""
        hour = 3_600_000
        lasting = {"since": now - 2 * hour, "state": "failing", "reason": ERROR.split("\n")[0], "ended_at": None}
        over = {**lasting, "since": now - 5 * hour, "state": "blocked", "ended_at": now - 280 * 60_000}
        with self.control.engine.begin() as c:
            for times in (lasting, over):
                c.execute(insert(s.fault).values(kind="stream", name=FAILING, app="metrics", **times))

    def _runs(self, now: int) -> None:
        c, day, hour = self.control, 1_767_225_600_000, 3_600_000
        of: dict[str, Any] = {
            "name": "order-replay",
            "target": "orders",
            "owner": "backfill_order-replay/manual__2026-11-21/run/1",
        }
        c.begin_backfill(DONE, **of, begin=day, end=day + 24 * hour, files=24, rows=812_000)
        c.end_backfill(
            DONE, "done", files_done=24, rows_done=812_000, verified="812,000 records, each as in the archive"
        )
        c.begin_backfill(FAILED, name="first-year", target="order-minutes", owner="olga@pond", dry=True, files=3)
        c.end_backfill(FAILED, "failed", REFUSED, files_done=1, rows_done=40_000)
        c.begin_backfill(SILENT, **of, begin=day + 24 * hour, files=24, rows=790_000)
        c.report_backfill(SILENT, files_done=7, rows_done=230_000, rate=9_000.0, remaining_ms=60_000)
        ages = {DONE: (26 * hour, 25 * hour), FAILED: (12 * 60_000, 10 * 60_000), SILENT: (20 * 60_000, 5 * 60_000)}
        t = s.backfill_run
        with c.engine.begin() as connection:
            for run, (began, heard) in ages.items():
                mine = update(t).where(t.c.run == run)
                connection.execute(mine.values(started_at=now - began, reported_at=now - heard))
                connection.execute(mine.where(t.c.ended_at.is_not(None)).values(ended_at=now - heard))
        for _ in range(2):
            c.begin_backfill(RUNNING, **of, begin=day - 24 * hour, end=day, files=24, rows=804_000)
        c.report_backfill(RUNNING, files_done=9, rows_done=301_500, rate=11_240.0, remaining_ms=45_000)
        c.begin_backfill(WAITS, name="first-year", target="order-minutes", owner="tomas@pond", end=day, files=400)
        c.report_backfill(WAITS, state="waiting", why="for order-minutes to be stopped", files_done=2, rows_done=1_204)

    def _figures(self, name: str, app: str, incarnation: str, phase: float, now: int) -> None:
        rate = {"topic-quality": 31_400.0, "bundles": 12_900.0, "assignments": 0.0}.get(name, 840.0)
        row = ProgressRow(
            name,
            app,
            incarnation,
            state={"assignments": "idle", FAILING: "failing", OFF: "stopped", AWAY: "waiting"}.get(name, "running"),
            batch_id=18_211,
            batch_at=now - 2_000,
            batch_ms=380,
            **PARTS,
            rows_per_s=rate,
            rows_in=int(rate * 86_400 * 3 + 17),
            rows_out=int(rate * 7_200),
            late=214 if name == "bundles" else 0,
            dead=3 if name == "topic-quality" else 0,
            watermark=now - 11_000,
            state_rows=int(4_211 + rate * 3),
            state_bytes=int(1_900_000 + rate * 900),
            lag=int(rate * 0.4),
            topics={f"{name}-in": {"lag": int(rate * 0.4), "offsets": {str(p): 9_120_443 + p * 611 for p in range(4)}}},
            restarts=7 if name == FAILING else 0,
            store=STORES.get(name),
            error={FAILING: ERROR, AWAY: REFUSES}.get(name),
            error_at={FAILING: now - 4_000, AWAY: now - 200_000}.get(name),
        )
        self.rows.append(row)
        self.control.report([row], keep=False)
        with self.control.engine.begin() as c:
            c.execute(insert(s.history), [self._past(row, phase, i, now) for i in range(359, -1, -1)])

    def _past(self, row: ProgressRow, phase: float, i: int, now: int) -> dict[str, Any]:
        wave = 1 + 0.3 * math.sin(i / 31 + phase) + 0.08 * math.sin(i * 1.7 + phase)
        burst = 6 if 118 < i < 131 and row.app == "quality" else 1
        return {
            "name": row.name,
            "at": now - i * 10_000,
            "rows_per_s": row.rows_per_s * wave,
            "batch_ms": int((row.batch_ms or 0) * wave),
            **{part: int(ms * wave) for part, ms in PARTS.items()},
            "batch_age_ms": int(1_400 * wave),
            "lag": int((row.lag or 0) * wave * burst),
            "watermark_age_ms": int(11_000 * wave),
            "state_rows": row.state_rows,
            "state_bytes": int((row.state_bytes or 0) * (1 - i / 1200)),
            "rows_in": row.rows_in,
            "rows_out": row.rows_out,
            "late": max(0, row.late - i // 3),
            "dead": row.dead if i < 125 else 0,
            "restarts": max(0, row.restarts - i // 4),
        }

    def _silence(self, incarnation: str, rows: list[ProgressRow], since: int) -> None:
        self.control.update_driver(incarnation, alive_at=since)
        with self.control.engine.begin() as c:
            for row in rows:
                c.execute(
                    update(s.progress)
                    .where(s.progress.c.name == row.name)
                    .values(reported_at=since, batch_at=since - 1_000, watermark=since - 12_000)
                )
