"""Every known breaker against real parts: after each there is one driver, and the streams go on. Once with the driver
on the supervisor's host, and once with it in a cluster.

One run of numbered records goes through all of it. The sums at the end show that none is lost or counted twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from penstock.devstack.servers.base import ManagedServer
from penstock.engine.session import submit_conf
from penstock.settings import settings
from penstock.supervision import launch
from penstock.supervision.cluster_drivers import ClusterSubmission
from penstock.supervision.supervisor import Supervisor
from tests.chaos.platform import APP, Platform, pause
from tests.support.supervisor_process import submission
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]


def test_airflow_starts_the_driver(platform: Platform) -> None:
    assert platform.works().owner.startswith("streams_chaos/")


def test_api_server_gone(platform: Platform) -> None:
    """45 s: a blocking task that the driver depended on was seen to be ended after 42 s without the api-server."""
    before = platform.works()
    platform.airflow.api.kill()
    platform.goes_on(before, 45)
    platform.airflow.api.start()
    platform.airflow.wait()
    assert platform.works().incarnation == before.incarnation


# After 20 s others take a scheduler for dead and adopt its tasks; after 15 s a triggerer's triggers go to another one.
@pytest.mark.parametrize(("part", "seconds"), [("scheduler", 22), ("triggerer", 17)])
def test_a_part_of_airflow_killed(platform: Platform, part: str, seconds: float) -> None:
    """And the driver while there is none."""
    before = platform.works()
    killed: ManagedServer = getattr(platform.airflow, part)
    killed.kill()
    platform.goes_on(before, seconds)
    assert before.session.kill()
    killed.start()
    platform.works(other_than=before)


def test_all_of_airflow_killed(platform: Platform) -> None:
    """22 s, longer than either of the above."""
    before = platform.works()
    platform.airflow.kill()
    platform.goes_on(before, 22)
    platform.airflow.start()
    platform.airflow.wait()
    platform.goes_on(before, 15)
    assert platform.works().incarnation == before.incarnation


def test_driver_killed(platform: Platform) -> None:
    before = platform.works()
    killed = time.monotonic()
    assert before.session.kill()
    wait_until(lambda: platform.heir(before), what="the next driver's process starts")
    started = time.monotonic() - killed
    platform.works(other_than=before)
    print(f"\nkilled: next process after {started:.1f} s, batches after {time.monotonic() - killed:.1f} s")


def test_driver_hung(platform: Platform) -> None:
    before = platform.works()
    hung = time.monotonic()
    pause(before)
    wait_until(lambda: platform.heir(before), what="the hung driver is replaced")
    started = time.monotonic() - hung
    assert before.session.alive() is False
    platform.works(other_than=before)
    print(f"\nhung: next process after {started:.1f} s, batches after {time.monotonic() - hung:.1f} s")


def test_broker_gone(platform: Platform) -> None:
    """65 s: Kafka's clients give up a request, and a broker a transaction, after 60 s."""
    platform.works()
    platform.broker.kill()
    time.sleep(65)
    platform.broker.start()
    platform.broker.wait()
    platform.works()


def launched(platform: Platform) -> set[str]:
    """The incarnations of all drivers, of those that have ended too."""
    return {d.incarnation for d in platform.control.drivers(live=False) if d.app == APP}


def test_two_launches_at_once(platform: Platform) -> None:
    """Four supervisors beside Airflow's own, at the same moment."""
    before = platform.works()
    known = launched(platform)

    def command(incarnation: str) -> Sequence[str] | ClusterSubmission:
        if settings().deploy == "cluster":
            return submission(APP, incarnation)
        conf = [word for key, value in submit_conf(APP).items() for word in ("--conf", f"{key}={value}")]
        return ["spark-submit", *conf, str(launch.DRIVER), *launch.driver_arguments(APP, incarnation)]

    gate = threading.Barrier(4)

    def supervise(name: str) -> None:
        gate.wait()
        Supervisor(platform.control, APP, name, command).tick()

    threads = [threading.Thread(target=supervise, args=(f"rival {n}",)) for n in range(4)]
    assert before.session.kill()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    d = platform.works(other_than=before)
    platform.goes_on(d, 10)
    assert launched(platform) - known == {d.incarnation}


def test_release_stop_and_start_by_the_form(platform: Platform) -> None:
    before = platform.works()
    platform.operate("release", f"app {APP}", "new code")
    released = platform.works(other_than=before)
    assert released.release_seq == before.release_seq + 1
    ended = platform.control.driver(before.incarnation)
    assert ended
    assert "release" in (ended.reason or ""), "it drained by itself"
    platform.operate("stop", f"app {APP}", "for the night")
    wait_until(lambda: not platform.drivers(), what="the driver leaves")
    platform.operate("start", f"app {APP}", "in the morning")
    platform.works(other_than=released)
    actions = platform.control.actions(200)
    done = [(a["actor"], a["verb"], a["target"], (a["detail"] or "").partition(" (run ")[0]) for a in actions]
    user = platform.airflow.user
    assert (user, "release", APP, "new code") in done
    for verb, note in (("stop", "for the night"), ("start", "in the morning")):
        assert {(user, verb, stream, note) for stream in ("totals", "finals")} <= set(done)


def test_a_run_marked_failed(platform: Platform) -> None:
    """Its driver ends and is replaced, unless the next run adopted it first: then it is that one's and stays."""
    before = platform.works()
    _, run, task, _ = before.owner.split("/")
    platform.call("PATCH", f"dags/streams_{APP}/dagRuns/{run}/taskInstances/{task}", new_state="failed")

    def settled() -> bool:
        d = platform.driver()
        return d is not None and d.owner != before.owner and d.state == "running"

    wait_until(settled, what="another run answers for a driver")
    after = platform.works()
    asked = [a for a in platform.control.actions(200) if a["verb"] == "terminate" and a["actor"] == before.owner]
    assert bool(asked) == (after.incarnation != before.incarnation)


def test_nothing_was_lost_and_nothing_counted_twice(platform: Platform) -> None:
    numbers = platform.numbers
    numbers.finish()
    want = {"count": numbers.sent, "sum": numbers.sent * (numbers.sent + 1) // 2}

    def total(rows: dict[str, dict[str, int]]) -> dict[str, int]:
        # The records that close the windows are numbered 0, in a window of their own.
        real = [v for v in rows.values() if v["sum"]]
        return {name: sum(v[name] for v in real) for name in want}

    def read(topic: str) -> dict[str, dict[str, int]]:
        return dict(platform.read(topic))

    # A window is final two minutes behind its end.
    deadline = time.monotonic() + 240
    while (total(read("totals")), total(read("finals"))) != (want, want) and time.monotonic() < deadline:
        numbers.close(later=150)
        time.sleep(5)
    assert total(read("totals")) == want
    assert total(read("finals")) == want
    windows = [start for start, _ in platform.read("finals")]
    assert len(windows) == len(set(windows)), "a final window was emitted twice"
    assert {p.late for p in platform.control.progress(APP).values()} == {0}
    assert {p.dead for p in platform.control.progress(APP).values()} == {0}
