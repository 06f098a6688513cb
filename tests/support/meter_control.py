"""A control database with one app, one stream and one driver, for the tests of the meter."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from penstock.catalog import build
from penstock.control import Control, ProgressRow
from penstock.streams import EmitChanges, Input, Stream, Topic, TopicOutput

STREAM = "topic-quality"
APP = "quality"


def _transform(records: Any) -> Any:
    return records


def filled(control: Control) -> Control:
    """Fill an empty one; the stream's report is of now, its watermark 5 s old."""
    stream = Stream(
        name=STREAM,
        app=APP,
        inputs={"records": Input(topic=Topic("clicks"), schema="at BIGINT", event_time="timestamp_millis(at)")},
        transform=_transform,
        output=TopicOutput(Topic("metrics"), key="key", value="value"),
        output_mode=EmitChanges(window=timedelta(seconds=1), grace=timedelta(minutes=1)),
    )
    control.sync(build([stream]))
    incarnation = control.claim(APP, None, host="here", spec_hash="0", owner="test", log="driver.log")
    assert incarnation
    control.update_driver(incarnation, state="running", pid=1, pid_started=1.0)
    report(control)
    return control


def report(control: Control) -> None:
    """The stream reports, as of now: what is older than some seconds is no figure."""
    (driver,) = control.drivers()
    now = int(time.time() * 1000)
    row = ProgressRow(
        name=STREAM,
        app=APP,
        incarnation=driver.incarnation,
        state="running",
        batch_id=41,
        batch_at=now - 1000,
        batch_ms=250,
        rows_per_s=120.5,
        rows_in=1000,
        rows_out=900,
        late=3,
        dead=2,
        watermark=now - 5000,
        state_rows=17,
        state_bytes=2 * 1024 * 1024,
        lag=12,
        topics={"clicks": {"lag": 12, "offsets": {"0": 500}}},
        restarts=1,
        expectations={"positive": {"action": "dead letter", "violations": 6, "minutes": {str(now // 60_000): 4}}},
    )
    control.report([row], keep=True)


def collect(pairs: Iterable[tuple[str, float | None]], into: dict[str, float | None]) -> None:
    """Keep what is measured before a probe raises."""
    for name, value in pairs:
        into[name] = value
