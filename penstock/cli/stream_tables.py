"""Tables of streams and apps, and of facts about one."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from penstock.cli.output import count, state, table
from penstock.monitoring.dashboard.model import AppView, StreamView
from penstock.monitoring.humanize import duration, first_line

Facts = list[tuple[str, str | Text]]


def _age(ms: int | None) -> str:
    return "-" if ms is None else duration(max(0, ms) // 1000 * 1000 if ms >= 1000 else max(0, ms))


def streams_table(streams: list[StreamView]) -> Table:
    numbers = ["last batch", "rows/s", "lag", "watermark", "late", "dead", "restarts"]
    rows = table(["stream", "app", "desired", "state", *numbers, "reason"], right=numbers)
    for s in streams:
        rows.add_row(
            s.name, s.app, s.desired, state(s.state), _age(s.batch_age_ms), count(s.rows_per_s), count(s.lag),
            _age(s.watermark_age_ms), count(s.late), count(s.dead), count(s.restarts), Text(first_line(s.why, 80)),
        )  # fmt: skip
    return rows


def facts_table(facts: Facts) -> Table:
    rows = table(["", ""])
    rows.show_header = False
    for key, value in facts:
        rows.add_row(Text(key, style="bold"), value)
    return rows


def stream_facts(s: StreamView) -> Facts:
    return [
        ("stream", s.name),
        ("app", s.app),
        ("desired", s.desired),
        ("state", state(s.state)),
        ("why", s.why or "-"),
        ("last report", "never" if s.reported_age_ms is None else f"{duration(s.reported_age_ms)} ago"),
        (
            "last batch",
            f"{_age(s.batch_age_ms)} ago, number {s.batch_id}, took {_age(s.batch_ms)}" if s.batch_id else "-",
        ),
        ("rows/s", count(s.rows_per_s)),
        ("rows in, out", f"{s.rows_in:,}, {s.rows_out:,}"),
        ("late, dead", f"{s.late:,}, {s.dead:,}"),
        ("lost", f"{s.lost:,}" + (", and an unknown number" if s.lost_unknown else "")),
        ("lag", "-" if s.lag is None else f"{s.lag:,}"),
        ("watermark", "none yet" if s.watermark_age_ms is None else f"{_age(s.watermark_age_ms)} ago"),
        ("state size", "-" if s.state_rows is None else f"{s.state_rows:,} rows, {s.state_bytes or 0:,} bytes"),
        ("restarts", f"{s.restarts:,}"),
    ]


def expectations_table(s: StreamView) -> Table:
    """The rules of a stream, which has some."""
    numbers = ["violations", "last hour"]
    rows = table(["rule", "on violation", *numbers, "latest minute"], right=numbers)
    for rule in s.expectations:
        latest = "-"
        if rule.minutes:
            at, violations = rule.minutes[-1]
            latest = f"{violations:,} at {datetime.fromtimestamp(at / 1000, UTC):%H:%M} UTC"
        rows.add_row(rule.name, rule.action, f"{rule.violations:,}", f"{rule.last_hour:,}", latest)
    return rows


def app_facts(a: AppView) -> Facts:
    facts: Facts = [("app", a.name), ("state", state(a.state)), ("why", a.why or "-")]
    facts += [("release", str(a.release_seq)), ("driver restarts", f"{a.restarts:,}")]
    if d := a.driver:
        pid = "-" if d.pid is None else str(d.pid)
        within = f", {d.submission} of the cluster" if d.submission else ""
        facts += [
            ("driver", f"{d.incarnation}, {d.state}, pid {pid} on {d.host}{within}"),
            ("driver alive", f"{duration(d.alive_age_ms)} ago"),
            ("log", d.log),
        ]
        if d.reason:
            facts.append(("driver ended", first_line(d.reason)))
    return facts
