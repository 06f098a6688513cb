"""A supervisor as on another host: a process of its own, with another host's name and a home of its own.

It shares the control database and the master's address. `python -m tests.support.supervisor_process APP NAME`, with the
platform's settings in its environment, runs until it is killed.
"""

from __future__ import annotations

import sys
import time

from penstock.control import connect
from penstock.engine.session import submit_conf
from penstock.errors import PenstockError
from penstock.host import session
from penstock.settings import settings
from penstock.supervision.cluster_drivers import ClusterSubmission
from penstock.supervision.decision.watch import AppWatch
from penstock.supervision.supervisor import Supervisor


def submission(app: str, incarnation: str) -> ClusterSubmission:
    """A driver as Airflow would have it started."""
    master = settings().spark_master
    return ClusterSubmission(app, incarnation, master, submit_conf(app, master))


def main() -> None:
    app, name = sys.argv[1:]
    session.host = lambda: f"{name}/boot/namespace"  # type: ignore[assignment]
    control = connect()
    watch = AppWatch(control, app)
    supervisor = Supervisor(control, app, name, lambda incarnation: submission(app, incarnation))
    said, acts = "", True
    while True:
        try:
            # The first tick adopts, as a run of Airflow's does when it begins.
            step = supervisor.tick(watch.evidence) if acts else watch.look()
            acts = step.action not in ("rest", "wait")
            says = f"{step.action}: {step.why}"
        except PenstockError as e:
            says, acts = str(e), False
        if says != said:
            print(f"{time.time():.1f} {app}: {says}", flush=True)
            said = says
        time.sleep(0.5)


if __name__ == "__main__":
    main()
