"""Drivers that a cluster runs, as supervision sees them; a test of `test_cluster_deploy.py` has a real cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.control import DriverRow
from penstock.errors import SettingError
from penstock.supervision import backends, cluster_drivers
from penstock.supervision.cluster_drivers import ClusterDriverState, ClusterSubmission
from tests.support.caches import clear_caches
from tests.support.supervised_platform import ME, Platform

MASTER = "spark://nowhere:7077"


@pytest.fixture
def p(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    clear_caches()
    made = Platform(tmp_path)
    yield made
    made.close()
    monkeypatch.undo()
    clear_caches()


def placed(p: Platform, **values: Any) -> DriverRow:
    """A driver in a cluster, not yet begun."""
    incarnation = p.control.claim("a", None, host="h", spec_hash="", owner="one", log="/none")
    assert incarnation
    p.control.update_driver(incarnation, master=MASTER, submission="driver-1", **values)
    return p.driver()


def says(monkeypatch: pytest.MonkeyPatch, d: DriverRow, seen: ClusterDriverState) -> None:
    """What its master has said a moment ago."""
    monkeypatch.setitem(cluster_drivers._answers, f"{d.submission} {d.master}", (time.monotonic() + 60, seen))


def test_the_state_of_a_silent_driver_comes_from_the_master(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    d = placed(p, pid=1, state="running")
    now = p.control.now()
    assert backends.alive(d, now) is True, "it beats: nobody is asked"
    later = now + 7_000
    for state, alive in (
        ("RUNNING", True), ("SUBMITTED", True), ("FAILED", False), ("KILLED", False), ("FINISHED", False),
        ("", None), ("ERROR", None), ("MISSING", None),
    ):  # fmt: skip
        says(monkeypatch, d, ClusterDriverState(state, "" if state else "away"))
        assert backends.alive(d, later) is alive, state
        assert backends.alive(d, now - 3_600_000) is alive, "its last beat is of a clock that was set back since"
    assert backends.alive(d, now + 16_000) is False, "of a lost one the lease has run out"
    says(monkeypatch, d, ClusterDriverState("", "away"))
    assert backends.alive(d, now + 16_000) is None, "a master that is away says nothing"
    assert "away" in backends.uncertainty(d)
    assert not backends.leader_gone(d)


def test_a_driver_without_a_place_is_queued_and_not_given_up(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    d = placed(p)
    p.age(d.incarnation, 300)
    says(monkeypatch, d, ClusterDriverState("SUBMITTED", free="1 workers with 0 cores free"))
    assert p.supervisor().tick().action == "rest"
    d = p.driver()
    assert (d.state, d.reason) == (
        "queued",
        f"waits for a worker with room for its driver; {MASTER} has 1 workers with 0 cores free",
    )
    p.age(d.incarnation, 300)
    assert p.supervisor().tick().action == "rest"
    assert p.driver().incarnation == d.incarnation
    assert p.launched == []
    says(monkeypatch, d, ClusterDriverState("RUNNING"))
    p.supervisor().tick()
    d = p.driver()
    assert (d.state, d.reason) == ("launching", None), "its time to start begins now"
    assert p.control.now() - d.alive_at < 5_000


def test_a_waiting_submission_that_is_not_desired_any_more_is_withdrawn(
    p: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = placed(p)
    p.age(d.incarnation, 30)
    says(monkeypatch, d, ClusterDriverState("SUBMITTED", free="no live workers"))
    p.control.set_desired(["s"], "off", ME)
    killed = []

    def kill(row: DriverRow) -> ClusterDriverState:
        killed.append(row.submission)
        says(monkeypatch, d, ClusterDriverState("KILLED"))
        return ClusterDriverState("KILLED")

    monkeypatch.setattr(cluster_drivers, "kill", kill)
    assert p.supervisor().tick().action == "rest"
    assert killed == ["driver-1"]
    assert p.driver().state == "ended"


def test_an_unreachable_master_is_reported_and_waited_for(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    d = placed(p, pid=1, state="running")
    p.age(d.incarnation, 100)
    d = p.driver()
    says(monkeypatch, d, ClusterDriverState("", "the Spark master does not answer"))
    from penstock.supervision.reaper import clear

    assert clear(p.control, d, "hung", ME)
    assert p.driver().reason == "hung; driver-1 may be left: the Spark master does not answer"


def test_what_a_driver_is_given(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    for name, value in {
        "PENSTOCK_DRIVER_HOST": "here", "PENSTOCK_LEASE_TTL": "9", "AIRFLOW_CONN_DEMO": "x", "AWS_REGION": "y",
        "AIRFLOW_HOME": "/a", "HOSTNAME": "here", "PYSPARK_GATEWAY_PORT": "1", "SPARK_LOCAL_IP": "10.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    given = ClusterSubmission("a", "i", MASTER, {}).environment()
    assert {"PENSTOCK_LEASE_TTL", "AIRFLOW_CONN_DEMO", "AWS_REGION", "JAVA_HOME", "PYTHONPATH"} <= given.keys()
    assert not {"PENSTOCK_DRIVER_HOST", "AIRFLOW_HOME", "HOSTNAME", "PYSPARK_GATEWAY_PORT", "SPARK_LOCAL_IP"} & {*given}
    assert (given["PENSTOCK_SPARK_MASTER"], given["PENSTOCK_DEPLOY"]) == (MASTER, "cluster")
    assert given["PATH"].split(os.pathsep)
    assert given["TZ"] == "UTC"


def test_only_a_standalone_master_takes_drivers() -> None:
    with pytest.raises(SettingError, match=r"is for a standalone master; got: yarn; hint: set PENSTOCK_SPARK_MA"):
        ClusterSubmission("a", "i", "yarn", {}).submit(Path("/none"))


@pytest.mark.parametrize(("given", "found"), [("768m", 768), ("2g", 2048), ("512", 512), ("1048576k", 1024)])
def test_memory_in_mebibytes(given: str, found: int) -> None:
    assert cluster_drivers._mebibytes(given) == found


@pytest.mark.processes
def test_a_heap_that_is_no_size_is_an_error() -> None:
    with pytest.raises(SettingError, match="PENSTOCK_DRIVER_MEMORY is not a heap size; got: much"):
        ClusterSubmission("a", "i", MASTER, {"spark.driver.memory": "much"}).submit(Path("/none"))


@pytest.mark.processes
def test_the_operator_gives_it_to_the_cluster(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    from penstock.airflow.operators import SuperviseStreams
    from penstock.engine import session

    monkeypatch.setenv("PENSTOCK_DEPLOY", "cluster")
    monkeypatch.setattr(session, "submit_conf", lambda app, master: {"spark.app.name": app, "a": master})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "spark://h:7077"}')
    clear_caches()
    found = SuperviseStreams(task_id="t", app="chaos")._command("chaos", "i9")
    assert found == ClusterSubmission(
        "chaos", "i9", "spark://h:7077", {"spark.app.name": "chaos", "a": "spark://h:7077"}
    )
    for app, module in (("captures", "penstock.capture.driver"), ("views-1", "penstock.views.driver")):
        words = SuperviseStreams(task_id="t", app=app)._command(app, "i9")
        assert isinstance(words, list)
        assert module in words, "these are no Spark applications, and stay with their supervisor"
