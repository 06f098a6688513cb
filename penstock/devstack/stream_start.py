"""How streams start with the platform: one driver starts beside Airflow, and Airflow launches the others behind it.

On few cores, drivers that start at once make each other late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence

from penstock.control import Control
from penstock.engine.session import submit_conf
from penstock.errors import HostError
from penstock.monitoring.dashboard.model import Overview, StreamView
from penstock.monitoring.dashboard.states import HEALTHY_STATES
from penstock.monitoring.health import FAILING_STATES, summarize_states
from penstock.supervision import backends, launch
from penstock.supervision.supervisor import Supervisor

OWNER = "penstock up"
"""Answers for the driver until a task in Airflow adopts it."""
STREAMS_TIMEOUT = 240.0
"""Seconds until every stream that is waited for must have reported."""
FAILING_TIMEOUT = 45.0
"""Seconds after which streams that fail are no longer waited for, if all others run."""
QUIET_TIMEOUT = 20.0
"""Seconds after which a record is no longer waited for, if none waits to be read. The meter sends every 15 s."""
FRESH_MS = 60_000
"""Age of a last batch up to which it counts as of now."""


def first_app(control: Control, left_out: Container[str], busy: Container[str] = ()) -> str:
    """The first app, by name, with wanted streams on Spark, of those that get records at once; empty if there is none.

    Args:
        left_out: Streams that cannot start now.
        busy: Apps that get records at once. If none of them fits, it is one of the others.
    """
    for app in sorted(control.apps(), key=lambda app: app.name not in busy):
        desired = control.desired(app.name)
        wanted = [name for name in desired if desired[name] == "on" and name not in left_out]
        if wanted and launch.has_streams(app.name):
            return app.name
    return ""


def launch_driver(control: Control, app: str) -> str:
    """Launch the driver of an app on this machine, as its task in Airflow would; returns why it was not, if so.

    A driver that lives stays with the task that answers for it.
    """
    row = control.app(app)
    driver = control.driver(row.incarnation) if row and row.incarnation else None
    if driver and driver.state != "ended" and backends.alive(driver) is not False:
        return "it runs already"
    step = Supervisor(control, app, OWNER, lambda incarnation: _command(app, incarnation)).tick()
    return "" if step.action == "rest" else step.why


def _command(app: str, incarnation: str) -> Sequence[str]:
    # What Airflow's hook makes of the connection that the embedded Airflow has; to import it takes seconds.
    if command := launch.python_command(app, incarnation):
        return command
    conf = launch.write_spark_conf(app, submit_conf(app))
    words = ["--load-spark-defaults", "--properties-file", str(conf), str(launch.DRIVER)]
    return ["spark-submit", *words, *launch.driver_arguments(app, incarnation)]


def wait_for_streams(
    look: Callable[[], Overview], left_out: Container[str], say: Callable[[str], None], app: str = ""
) -> Overview:
    """Wait until streams run and one of them has read a record, or there is none to read, and say what for.

    Args:
        look: Reads the streams as they are.
        left_out: Streams that cannot start now.
        app: The app whose streams must run; empty: all that are wanted.

    Returns:
        The streams as they are then.

    Raises:
        HostError: Streams fail, or take longer than STREAMS_TIMEOUT.
    """
    deadline, well_at, busy_at = time.monotonic() + STREAMS_TIMEOUT, time.monotonic(), time.monotonic()
    while True:
        view = look()
        wanted = [s for a in view.apps for s in a.streams if s.desired == "on" and s.name not in left_out]
        starting = [s for s in wanted if s.state not in HEALTHY_STATES]
        waiting = [s for s in starting if app in ("", s.app)]
        read = any(s.rows_in and s.batch_age_ms is not None and s.batch_age_ms < FRESH_MS for s in wanted)
        if waiting or not all(s.state == "idle" or s in starting for s in wanted):
            busy_at = time.monotonic()
        is_quiet = time.monotonic() - busy_at > QUIET_TIMEOUT
        if not waiting and (read or is_quiet or not wanted):
            say(_summary(wanted, starting))
            return view
        if not waiting or any(s.state not in FAILING_STATES for s in waiting):
            well_at = time.monotonic()
        if waiting and (time.monotonic() > deadline or time.monotonic() - well_at > FAILING_TIMEOUT):
            raise HostError(
                "not every stream runs",
                got="; ".join(f"{s.name} is {s.state}" + (f": {s.why}" if s.why else "") for s in waiting),
                hint="look at `penstock streams logs <stream>` and at the DAGs in Airflow; the platform stays up",
            )
        if time.monotonic() > deadline:
            say("no stream has read a record in the last minute")
            return view
        say(summarize_states(waiting) or "the first batches")
        time.sleep(1)


def _summary(wanted: Sequence[StreamView], starting: Sequence[StreamView]) -> str:
    streams = f"{len(wanted)} stream{'' if len(wanted) == 1 else 's'}"
    if starting:
        streams = f"{len(wanted) - len(starting)} of {streams}"
    failing = [s for s in starting if s.state in FAILING_STATES]
    parts = [streams, f"{sum(s.rows_in for s in wanted):,} records read"]
    if len(starting) > len(failing):
        parts.append(f"{len(starting) - len(failing)} still start")
    return ", ".join([*parts, *([summarize_states(failing)] if failing else [])])
