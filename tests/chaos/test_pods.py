"""The manifests against a real API server of Kubernetes, and streams whose executors are its pods.

tests/support/kubernetes.py describes the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
import yaml  # type: ignore[import-untyped]

from penstock.control import DriverRow
from penstock.devstack.servers.kafka import Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from tests.chaos.cluster_app import NumbersApp
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.platform import APP, CHAOS, ME
from tests.support.kubernetes import NAMESPACE, ApiServer, Kubernetes, Node, pods_of
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1800)]

MANIFESTS = PROJECT / "docker" / "kubernetes"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:penstock"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with all manifests applied."""
    with Kubernetes(tmp_path_factory.mktemp("kubernetes")) as kubernetes:
        kubernetes.api.kubectl("apply", "-k", str(MANIFESTS))
        yield kubernetes.api


def test_manifests_are_valid_and_applying_them_again_changes_nothing(api: ApiServer) -> None:
    # Strict validation: unknown fields are errors.
    output = api.kubectl("apply", "-k", str(MANIFESTS), "--validate=strict").splitlines()
    assert len(output) > 8
    # kubectl fails if there are differences.
    assert not api.kubectl("diff", "-k", str(MANIFESTS))


@pytest.mark.parametrize("allowed", [True, False])
def test_pods_meet_the_security_standard_of_their_namespace(api: ApiServer, tmp_path: Path, allowed: bool) -> None:
    """The test creates the pods, as neither a StatefulSet controller nor Spark does it here."""
    pod_template = json.loads(api.kubectl("get", "statefulset", "penstock", "-o", "json"))["spec"]["template"]
    executor = yaml.safe_load((MANIFESTS / "executor.yaml").read_text())
    # The StatefulSet controller would add this volume.
    pod_template["spec"]["volumes"].append({"name": "home", "emptyDir": {}})
    for name, pod in {"penstock": pod_template, "executor": executor}.items():
        if not allowed:
            pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        pod |= {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": name}}
        (tmp_path / "pod.json").write_text(json.dumps(pod))
        output = api.kubectl("create", "-f", str(tmp_path / "pod.json"), "--dry-run=server", fails=not allowed)
        assert ("created" if allowed else 'violates PodSecurity "restricted') in output


@pytest.mark.parametrize(
    ("verb", "what", "allowed"),
    [("create", "pods", True), ("deletecollection", "configmaps", True), ("get", "secrets", False),
     ("create", "pods --subresource=exec", False), ("create", "deployments", False)],
)  # fmt: skip
def test_permissions_of_drivers(api: ApiServer, verb: str, what: str, allowed: bool) -> None:
    output = api.kubectl("auth", "can-i", verb, *what.split(), "--as", ACCOUNT, fails=not allowed)
    assert allowed is (output.strip() == "yes")


class PodApp(NumbersApp):
    """The app with executors that are pods."""

    def __init__(self, brokers: Brokers, apps: Drivers, api: ApiServer) -> None:
        super().__init__(brokers, apps)
        self.api = api

    def phases(self) -> dict[str, str]:
        """Phases of the executors' pods, by name."""
        with self.api.client() as client:
            return {name: pod["status"]["phase"] for name, pod in pods_of(client).items()}

    def running_pods(self) -> list[str]:
        return [name for name, phase in self.phases().items() if phase == "Running"]

    def wait_executors(self) -> None:
        wait_until(lambda: len(self.running_pods()) == 2, what="two pods run")

    def row(self) -> DriverRow:
        return self.apps.row(self.driver.incarnation)


@contextmanager
def pod_app(api: ApiServer, mariadb: MariaDB, home: Path) -> Iterator[PodApp]:
    """The app with the service account of the manifests."""
    token = api.kubectl("create", "token", "penstock", "--duration", "1h").strip()
    conf = {
        "spark.kubernetes.authenticate.oauthToken": token,
        "spark.kubernetes.authenticate.caCertFile": str(api.certificate),
    }
    variables = {
        "PENSTOCK_SPARK_MASTER": f"k8s://{api.url}", "PENSTOCK_KUBERNETES_NAMESPACE": NAMESPACE,
        "PENSTOCK_EXECUTOR_IMAGE": "penstock:0.2.0", "PENSTOCK_EXECUTOR_TEMPLATE": MANIFESTS / "executor.yaml",
        "PENSTOCK_DRIVER_HOST": "127.0.0.1", "PENSTOCK_APP_CORES": 2, "PENSTOCK_EXECUTOR_CORES": 1,
        "PENSTOCK_EXECUTOR_MEMORY": "512m", "PENSTOCK_LEASE_TTL": 8, "PENSTOCK_SPARK_CONF": json.dumps(conf),
    }  # fmt: skip
    with (
        Brokers(home, [free_port(2)]) as brokers,
        drivers(brokers, mariadb, home, CHAOS, **variables) as apps,
        closing(PodApp(brokers, apps, api)) as app,
    ):
        app.numbers.start()
        yield app


def test_streams_survive_lost_pods_and_killed_drivers(api: ApiServer, mariadb: MariaDB, tmp_path: Path) -> None:
    with pod_app(api, mariadb, tmp_path / "home") as app:
        app.driver = app.apps.launch(APP)
        wait_until(lambda: app.row().state == "queued", what=f"it reports that it waits: {app.driver.log}")
        assert app.row().reason == f"waits for executors: 2 cores, 1 with 512m each of k8s://{api.url}"
        assert set(app.phases().values()) == {"Pending"}
        with Node(api, tmp_path / "pods") as node:
            app.apps.wait_running(app.driver)
            app.wait_progress()
            app.wait_executors()
            command = " ".join(psutil.Process(app.row().pid).cmdline())
            assert "oauthToken" not in command, "every user may read a command line"

            first, second = app.running_pods()
            app.recovery_time(lambda: api.kubectl("delete", "pod", first, "--wait=false"))
            app.wait_executors()
            assert first not in app.running_pods()
            app.recovery_time(node.process(second).kill)
            app.wait_executors()
            app.check_output()

            # Its executors notice that the driver is gone, and end.
            old_pods = app.running_pods()
            assert app.driver.session.kill()
            wait_until(lambda: not set(app.running_pods()) & set(old_pods), what="pods of the killed driver have ended")
            app.driver = app.apps.launch(APP)
            app.apps.wait_running(app.driver)
            app.wait_progress()
            app.check_output()

            old_pods = app.running_pods()
            app.apps.control.release(APP, ME)
            wait_until(lambda: not set(app.phases()) & set(old_pods), what="the pods of the drained driver are removed")
    assert not list(PROJECT.glob("*.jar")), "nothing is written to the image's folder"
