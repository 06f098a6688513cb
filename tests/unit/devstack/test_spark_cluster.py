"""What follows from `PENSTOCK_CLUSTER`, what apps ask of a cluster, and how it is said that there is not enough."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.control import Control
from penstock.devstack import doctor, platform
from penstock.devstack.platform import Platform
from penstock.devstack.servers.kafka import Broker, Brokers
from penstock.engine import executor_check, executor_wait, session
from penstock.errors import HostError, SettingError
from penstock.host import ports, process
from penstock.java import aot_cache
from penstock.monitoring.dashboard.states import STATES, StateLimits, driver_state
from penstock.monitoring.health import FAILING_STATES
from penstock.settings import CLUSTER_MARK, ExecutorResources, settings
from tests.support.meter_control import APP, filled
from tests.support.reports import Silent
from tests.support.wait import wait_until

pytestmark = pytest.mark.processes

CLUSTER = "spark://127.0.0.1:17077"


@pytest.fixture(autouse=True)
def plain(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr("penstock.java.jars.jars_of", lambda _: [Path("/jars/connector.jar")])
    monkeypatch.setattr("penstock.java.spark_classes.jar_of", lambda source: Path(f"/jars/{source.stem}.jar"))
    monkeypatch.setattr("penstock.java.aot_cache.options", lambda: ["-XX:AOTCache=driver.aot"])


def given(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    settings.cache_clear()


# Settings


def test_three_brokers_and_a_master_follow_from_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings().spark_master, settings().replication, settings().broker_ports) == ("local[2]", 1, [19092])
    given(monkeypatch, CLUSTER="1", KAFKA_PORT="20000", SPARK_PORT="21000")
    s = settings()
    assert (s.spark_master, s.replication) == ("spark://127.0.0.1:21000", 3)
    assert s.bootstrap == "127.0.0.1:20000,127.0.0.1:20002,127.0.0.1:20004"


def test_what_is_given_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, CLUSTER="1", SPARK_MASTER="local[1]", REPLICATION="2")
    assert (settings().spark_master, settings().replication) == ("local[1]", 2)
    assert Platform().spark is None
    given(monkeypatch, KAFKA_BOOTSTRAP="elsewhere:9092")
    monkeypatch.delenv("PENSTOCK_REPLICATION")
    settings.cache_clear()
    assert settings().replication == 1
    assert Platform().brokers == []


def test_a_home_remembers_that_it_is_a_clusters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / CLUSTER_MARK).touch()
    settings.cache_clear()
    assert settings().spark_master == CLUSTER
    assert [part.name for part in Platform().servers] == [
        "broker-1", "broker-2", "broker-3", "mariadb", "s3", "spark-master", "spark-worker-1", "spark-worker-2",
        "meter", "airflow-api", "airflow-dag-processor", "airflow-triggerer", "airflow-scheduler",
    ]  # fmt: skip
    given(monkeypatch, CLUSTER="0")
    assert settings().spark_master == "local[2]"
    assert [part.name for part in Platform().servers][:2] == ["broker", "mariadb"]


@pytest.mark.parametrize("mistake", ['{"shop": {"cores": 0}}', '{"shop": {"memory": "lots"}}', '{"shop": {"core": 1}}'])
def test_a_wrong_placement_is_one_sentence(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    given(monkeypatch, PLACEMENT=mistake)
    with pytest.raises(SettingError, match="PENSTOCK_PLACEMENT"):
        settings()


# The platform


def test_data_of_one_broker_is_not_taken_for_a_clusters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Platform, "_check", lambda _: "")
    given(monkeypatch, CLUSTER="1")
    data = home / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").touch()
    with pytest.raises(HostError, match=r"lies on one broker.*penstock clean"):
        Platform().up(Silent())
    assert not (home / CLUSTER_MARK).exists()
    (data / "meta.properties").unlink()
    (home / CLUSTER_MARK).touch()
    given(monkeypatch, CLUSTER="0")
    with pytest.raises(HostError, match=r"lies on the brokers of a cluster.*leave PENSTOCK_CLUSTER out"):
        Platform().up(Silent())


def test_what_runs_is_found_on_the_ports_it_has(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, CLUSTER="1")
    record = process.spawn("spark-master", ["sleep", "600"], run=home / "run", log=home / "x", ports={"spark": 4711})
    try:
        found = platform.as_running(settings())
        assert found.spark_master == "spark://127.0.0.1:4711"
        cluster = Platform(found).spark
        assert cluster
        assert [part.ports["page"] for part in cluster.servers] == [4712, 4714, 4716]
    finally:
        record.session.kill()


def test_doctor_tells_what_of_the_cluster_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, CLUSTER="1", KAFKA_PORT=str(ports.free_port(6)), SPARK_PORT=str(ports.free_port(6)))
    found = {check.name: check for check in doctor.examine(Platform())}
    assert found["Broker"].state == "fail"
    assert "(3 of 3)" in found["Broker"].found
    assert "Spark worker 1, Spark worker 2" in found["Spark cluster"].found
    assert found["Spark cluster"].hint == doctor.UNUSED


@pytest.mark.parametrize(
    ("tried", "state", "said"),
    [
        (
            executor_check.ExecutorCheckResult(python="/p", host="h", records=3),
            "ok",
            "/p on h runs this code and read 3 records",
        ),
        (
            executor_check.ExecutorCheckResult(missing="waits for executors"),
            "note",
            "could not be tested: waits for executors",
        ),
        (executor_check.ExecutorCheckResult(error="error=2"), "fail", "/python of spark://elsewhere:7077: error=2"),
    ],
)
def test_doctor_tells_how_an_executor_did(
    tried: executor_check.ExecutorCheckResult, state: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, SPARK_MASTER="spark://elsewhere:7077", KAFKA_BOOTSTRAP="elsewhere:9092")
    given(monkeypatch, EXECUTOR_PYTHON="/python")
    monkeypatch.setattr(executor_check, "check_executor", lambda: tried)
    (check,) = doctor._executors(Platform())
    assert (check.state, check.found) == (state, said)


@pytest.mark.parametrize(
    ("asked", "fit"),
    [
        ([ExecutorResources(cores=2, executor_cores=1, memory="512m")] * 8, True),
        ([ExecutorResources(cores=2, executor_cores=1, memory="512m")] * 9, False),
        ([ExecutorResources(cores=1, executor_cores=1, memory="8g")], False),
        ([ExecutorResources(cores=9, executor_cores=9, memory="1g")], False),
        ([ExecutorResources(cores=2, executor_cores=1, memory="4g")] * 2, False),
    ],
)
def test_doctor_tells_whether_all_apps_fit(asked: list[ExecutorResources], fit: bool) -> None:
    assert doctor._fit(asked, settings()) is fit


@pytest.mark.parametrize(("memory", "fit"), [("1g", True), ("4g", False)])
def test_drivers_that_live_on_workers_are_counted(memory: str, fit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [ExecutorResources(cores=1, executor_cores=1, memory="3g")] * 3
    for deploy, found in (("client", True), ("cluster", fit)):
        given(monkeypatch, DEPLOY=deploy, DRIVER_MEMORY=memory)
        assert doctor._fit(asked, settings()) is found


def test_down_stops_what_the_settings_of_today_would_not_start(home: Path) -> None:
    record = process.spawn("spark-worker-4", ["sleep", "600"], run=home / "run", log=home / "x")
    try:
        Platform().down(Silent())
        assert record.process() is None
        assert process.read(home / "run", "spark-worker-4") is None
    finally:
        record.session.kill()


def test_internal_topics_follow_the_number_of_brokers(tmp_path: Path) -> None:
    one = Broker(tmp_path, 5000).properties()
    three = Brokers(tmp_path, [5000, 5002, 5004]).servers[1].properties()
    names = [key for key in three if key.endswith((".replication.factor", ".isr", "insync.replicas"))]
    assert len(names) == 7
    for name in names:
        assert (one.get(name, "1"), three[name]) == ("1", "3" if name.endswith("factor") else "2"), name
    assert one["controller.quorum.voters"] == "1@127.0.0.1:5001"
    assert three["controller.quorum.voters"] == "1@127.0.0.1:5001,2@127.0.0.1:5003,3@127.0.0.1:5005"
    assert (three["node.id"], three["log.dirs"]) == ("2", str(tmp_path / "kafka-2" / "data"))


def test_the_training_run_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, CLUSTER="1")
    given(monkeypatch, **{name.removeprefix("PENSTOCK_"): value for name, value in aot_cache.ALONE.items()})
    assert (settings().spark_master, settings().replication, settings().cluster) == ("local[2]", 1, False)


# What an app asks for


def test_an_app_takes_what_it_is_given_and_not_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, CLUSTER="1", PLACEMENT=json.dumps({"shop": {"cores": 4, "executor_cores": 2, "memory": "1g"}}))
    names = ("spark.cores.max", "spark.executor.cores", "spark.executor.memory")
    assert [session.submit_conf("shop")[name] for name in names] == ["4", "2", "1g"]
    conf = session.submit_conf("other")
    assert [conf[name] for name in names] == ["2", "1", "512m"]
    assert conf["spark.authenticate"] == "true"
    assert conf["spark.executorEnv.PYTHONPATH"] == f"penstock-release:{settings().project}"
    assert not any(name in session.submit_conf("shop", "local[2]") for name in (*names, "spark.authenticate"))


def test_the_drivers_class_path_is_the_one_its_cache_was_made_for() -> None:
    for master in ("local[2]", CLUSTER, "spark://far:7077"):
        assert session.submit_conf("shop", master)["spark.driver.extraClassPath"] == "/jars/connector.jar"


def test_executors_elsewhere_fetch_the_connector() -> None:
    here, far = session.submit_conf("shop", CLUSTER), session.submit_conf("shop", "spark://far:7077")
    assert here["spark.executor.extraClassPath"] == "/jars/connector.jar"
    own = "/jars/LocalCheckpointFileManager.jar,/jars/BatchConstant.jar,/jars/HeartbeatWatermarkTracker.jar"
    assert (here["spark.jars"], far["spark.jars"]) == (own, f"/jars/connector.jar,{own}")
    assert "AOTCache" in here["spark.executor.extraJavaOptions"]
    assert "AOTCache" not in far["spark.executor.extraJavaOptions"]
    assert here["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in far


# What is missing


def worker(cores: int, used: int, memory: int, memory_used: int) -> dict[str, Any]:
    return {"cores": cores, "coresused": used, "memory": memory, "memoryused": memory_used, "executors": []}


@pytest.mark.parametrize(
    ("workers", "cores", "said"),
    [
        ([], 1, "no live workers"),
        ([worker(2, 2, 1024, 512)], 1, "1 workers with 0 cores and 512 MiB free"),
        (
            [worker(1, 0, 1024, 0), worker(1, 1, 1024, 1024)],
            2,
            "2 workers with 1 cores and 1024 MiB free, 0 cores and 0 MiB free: no worker has 2 cores at all",
        ),
    ],
)
def test_what_a_cluster_has_left(workers: list[dict[str, Any]], cores: int, said: str) -> None:
    assert (
        executor_wait.describe_free_resources(workers, ExecutorResources(cores=4, executor_cores=cores, memory="1g"))
        == said
    )


def test_the_look_for_executors_goes_on_whatever_the_master_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, executors = list[tuple[str, int]](), 0

    def pages(_: object, host: str, port: int) -> list[str]:
        asked.append((host, port))
        raise TypeError

    monkeypatch.setattr(executor_wait, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr("penstock.engine.jvm.bridge.executor_count", lambda _: executors)
    monkeypatch.setattr("penstock.engine.jvm.bridge.worker_page_urls", pages)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://h1:7077,h2:7078", applicationId="app-1"))
    found = executor_wait.ExecutorWatch(spark, "shop")  # type: ignore[arg-type]
    wait_until(lambda: "does not say what is free" in (found.missing or ""), 20)
    assert asked[0] == ("h1", 7077)
    executors = 1
    wait_until(lambda: found.missing is None, 20)
    found.close()


def test_executors_that_never_come_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_wait, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(executor_wait.ExecutorWatch, "_missing", lambda _: "")
    monkeypatch.setattr("penstock.engine.jvm.bridge.executor_count", lambda _: 0)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master=CLUSTER, applicationId="app-1"))
    found = executor_wait.ExecutorWatch(spark, "shop")  # type: ignore[arg-type]
    wait_until(lambda: "see their logs" in (found.missing or ""), 20)
    found.close()


def test_a_queued_driver_says_what_it_waits_for_until_it_has_it(control: Control) -> None:
    filled(control)
    app = control.app(APP)
    assert app
    incarnation = control.claim(APP, app.incarnation, host="h", spec_hash="", owner="o", log="")
    assert incarnation

    def told() -> tuple[str, str | None]:
        row = control.driver(incarnation)
        assert row
        return row.state, row.reason

    row = replace(control.drivers()[0], state="queued", reason="two cores", alive_at=control.now())
    assert driver_state(app, row, True, control.now(), StateLimits()) == ("queued", "two cores")
    assert "queued" in FAILING_STATES & STATES.keys()
    for lacking, state in (("", "launching"), ("two cores", "queued"), ("", "queued"), (None, "running")):
        control.report_driver_resources(incarnation, lacking)
        assert told() == (state, "two cores" if state == "queued" else None)
    control.update_driver(incarnation, state="draining")
    control.report_driver_resources(incarnation, "two cores")
    assert told() == ("draining", None)
