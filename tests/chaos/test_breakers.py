"""Every known fault against real servers: after each there is one driver, and the streams continue.

Everything runs once with the driver on the supervisor's host, and once with it in a cluster.

Numbered records are sent all the time. The sums at the end show that none is lost or counted twice.
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
    assert platform.wait_working().owner.startswith("streams_chaos/")


def test_api_server_gone(platform: Platform) -> None:
    """45 s: a blocking task that the driver depended on was ended after 42 s without the api-server."""
    previous = platform.wait_working()
    platform.airflow.api.kill()
    platform.check_undisturbed(previous, 45)
    platform.airflow.api.start()
    platform.airflow.wait()
    assert platform.wait_working().incarnation == previous.incarnation


# After 20 s others take a scheduler for dead and adopt its tasks; after 15 s a triggerer's triggers go to another one.
@pytest.mark.parametrize(("part", "seconds"), [("scheduler", 22), ("triggerer", 17)])
def test_scheduler_or_triggerer_killed(platform: Platform, part: str, seconds: float) -> None:
    """The driver is killed while the server is down."""
    previous = platform.wait_working()
    server: ManagedServer = getattr(platform.airflow, part)
    server.kill()
    platform.check_undisturbed(previous, seconds)
    assert previous.session.kill()
    server.start()
    platform.wait_working(other_than=previous)


def test_all_of_airflow_killed(platform: Platform) -> None:
    """22 s, longer than either of the above."""
    previous = platform.wait_working()
    platform.airflow.kill()
    platform.check_undisturbed(previous, 22)
    platform.airflow.start()
    platform.airflow.wait()
    platform.check_undisturbed(previous, 15)
    assert platform.wait_working().incarnation == previous.incarnation


def test_driver_killed(platform: Platform) -> None:
    previous = platform.wait_working()
    killed_at = time.monotonic()
    assert previous.session.kill()
    wait_until(lambda: platform.successor(previous), what="the next driver's process starts")
    started = time.monotonic() - killed_at
    platform.wait_working(other_than=previous)
    print(f"\nkilled: next process after {started:.1f} s, batches after {time.monotonic() - killed_at:.1f} s")


def test_driver_hung(platform: Platform) -> None:
    previous = platform.wait_working()
    hung_at = time.monotonic()
    pause(previous)
    wait_until(lambda: platform.successor(previous), what="the hung driver is replaced")
    started = time.monotonic() - hung_at
    assert previous.session.alive() is False
    platform.wait_working(other_than=previous)
    print(f"\nhung: next process after {started:.1f} s, batches after {time.monotonic() - hung_at:.1f} s")


def test_broker_gone(platform: Platform) -> None:
    """65 s: Kafka's clients give up a request, and a broker a transaction, after 60 s."""
    platform.wait_working()
    platform.broker.kill()
    time.sleep(65)
    platform.broker.start()
    platform.broker.wait()
    platform.wait_working()


def incarnations(platform: Platform) -> set[str]:
    """The incarnations of all drivers, of those that have ended too."""
    return {d.incarnation for d in platform.control.drivers(live=False) if d.app == APP}


def test_four_supervisors_launch_at_once(platform: Platform) -> None:
    """Four supervisors beside Airflow's own, at the same moment."""
    previous = platform.wait_working()
    incarnations_before = incarnations(platform)

    def command(incarnation: str) -> Sequence[str] | ClusterSubmission:
        if settings().deploy == "cluster":
            return submission(APP, incarnation)
        conf = [word for key, value in submit_conf(APP).items() for word in ("--conf", f"{key}={value}")]
        return ["spark-submit", *conf, str(launch.DRIVER), *launch.driver_arguments(APP, incarnation)]

    barrier = threading.Barrier(4)

    def supervise(name: str) -> None:
        barrier.wait()
        Supervisor(platform.control, APP, name, command).tick()

    threads = [threading.Thread(target=supervise, args=(f"rival {n}",)) for n in range(4)]
    assert previous.session.kill()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    d = platform.wait_working(other_than=previous)
    platform.check_undisturbed(d, 10)
    assert incarnations(platform) - incarnations_before == {d.incarnation}


def test_release_stop_and_start_by_the_forms(platform: Platform) -> None:
    previous = platform.wait_working()
    platform.run_form("release_streams", target=f"app {APP}", note="new code")
    released = platform.wait_working(other_than=previous)
    assert released.release_seq == previous.release_seq + 1
    ended = platform.control.driver(previous.incarnation)
    assert ended
    assert "release" in (ended.reason or ""), "it drained by itself"
    platform.run_form("operate_streams", action="stop", target=f"app {APP}", note="for the night")
    wait_until(lambda: not platform.drivers(), what="the driver exits")
    platform.run_form("operate_streams", action="start", target=f"app {APP}", note="in the morning")
    platform.wait_working(other_than=released)
    actions = platform.control.actions(200)
    done = [(a["actor"], a["verb"], a["target"], (a["detail"] or "").partition(" (run ")[0]) for a in actions]
    user = platform.airflow.user
    assert (user, "release", APP, "new code") in done
    for verb, note in (("stop", "for the night"), ("start", "in the morning")):
        assert {(user, verb, stream, note) for stream in ("totals", "finals")} <= set(done)


def test_a_run_marked_failed(platform: Platform) -> None:
    """The driver ends and is replaced, unless the next run has adopted it before; then it stays."""
    previous = platform.wait_working()
    _, run, task, _ = previous.owner.split("/")
    platform.call("PATCH", f"dags/streams_{APP}/dagRuns/{run}/taskInstances/{task}", new_state="failed")

    def settled() -> bool:
        d = platform.driver()
        return d is not None and d.owner != previous.owner and d.state == "running"

    wait_until(settled, what="another run owns a driver")
    current = platform.wait_working()
    ends = [a for a in platform.control.actions(200) if a["verb"] == "terminate" and a["actor"] == previous.owner]
    assert bool(ends) == (current.incarnation != previous.incarnation)


def test_nothing_was_lost_and_nothing_counted_twice(platform: Platform) -> None:
    numbers = platform.numbers
    numbers.finish()
    expected = {"count": numbers.sent, "sum": numbers.sent * (numbers.sent + 1) // 2}

    def total(rows: dict[str, dict[str, int]]) -> dict[str, int]:
        # Records numbered 0 only close windows, and are in a window of their own.
        numbered = [v for v in rows.values() if v["sum"]]
        return {name: sum(v[name] for v in numbered) for name in expected}

    def read(topic: str) -> dict[str, dict[str, int]]:
        return dict(platform.read(topic))

    # A window is final two minutes after its end.
    deadline = time.monotonic() + 240
    while (total(read("totals")), total(read("finals"))) != (expected, expected) and time.monotonic() < deadline:
        numbers.close(ahead_s=150)
        time.sleep(5)
    assert total(read("totals")) == expected
    assert total(read("finals")) == expected
    windows = [start for start, _ in platform.read("finals")]
    assert len(windows) == len(set(windows)), "a final window was emitted twice"
    assert {p.late for p in platform.control.progress(APP).values()} == {0}
    assert {p.dead for p in platform.control.progress(APP).values()} == {0}
