"""Supervises drivers and sends heartbeats in runs without Airflow.

`python -m tests.chaos.long.supervision`, with the platform's settings in its environment; runs until it is killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from penstock import catalog
from penstock.control import connect
from penstock.engine.session import submit_conf
from penstock.errors import PenstockError
from penstock.settings import settings
from penstock.supervision import launch
from penstock.supervision.decision.watch import AppWatch
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.supervision.supervisor import Supervisor


def command(app: str, incarnation: str) -> Sequence[str]:
    """The command line of a driver, as Airflow would start it."""
    if plain := launch.python_command(app, incarnation):
        return plain
    conf = [word for key, value in submit_conf(app).items() for word in ("--conf", f"{key}={value}")]
    return ["spark-submit", *conf, str(launch.DRIVER), *launch.driver_arguments(app, incarnation)]


def supervise(app: str) -> None:
    control = connect()
    watch = AppWatch(control, app)
    supervisor = Supervisor(control, app, "supervision", lambda incarnation: command(app, incarnation))
    while True:
        try:
            step = watch.look()
            if step.action not in ("rest", "wait", "request_release"):
                print(f"{app}: {step.action}: {step.why}", flush=True)
                supervisor.tick(watch.evidence)
        except PenstockError as e:
            print(f"{app}: {e}", flush=True)
        time.sleep(0.5)


def main() -> None:
    declared = catalog.load()
    for app in declared.apps:
        threading.Thread(target=supervise, args=(app,), name=app, daemon=True).start()
    beater = HeartbeatSender(declared.heartbeat_topics(), connect(), settings().bootstrap)
    while True:
        try:
            wait = beater.run_once()
        except PenstockError as e:
            print(f"no beat: {e}", flush=True)
            wait = 1.0
        time.sleep(min(wait, 1.0))


if __name__ == "__main__":
    main()
