"""The manifests against a real API server of Kubernetes, and streams whose executors are pods of it.

tests/support/kubernetes.py says what a node is here.
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
from tests.chaos.clustered import Flowing
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.platform import APP, CHAOS, ME
from tests.support.kubernetes import NAMESPACE, ApiServer, Kubernetes, Node, pods_of
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1800)]

MANIFESTS = PROJECT / "docker" / "kubernetes"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:penstock"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With all that is applied."""
    with Kubernetes(tmp_path_factory.mktemp("kubernetes")) as found:
        found.api.kubectl("apply", "-k", str(MANIFESTS))
        yield found.api


def test_all_is_taken_and_a_second_time_changes_nothing(api: ApiServer) -> None:
    # As strictly as a server can: fields that it does not know are errors.
    said = api.kubectl("apply", "-k", str(MANIFESTS), "--validate=strict").splitlines()
    assert len(said) > 8
    # Fails where there are any.
    assert not api.kubectl("diff", "-k", str(MANIFESTS))


@pytest.mark.parametrize("allowed", [True, False])
def test_pods_are_what_their_namespace_asks_of_them(api: ApiServer, tmp_path: Path, allowed: bool) -> None:
    """There is nobody here to make them of the StatefulSet, nor Spark that makes executors' after the template."""
    whole = json.loads(api.kubectl("get", "statefulset", "penstock", "-o", "json"))["spec"]["template"]
    executor = yaml.safe_load((MANIFESTS / "executor.yaml").read_text())
    # A claim of each is what a StatefulSet's own controller puts in.
    whole["spec"]["volumes"].append({"name": "home", "emptyDir": {}})
    for name, pod in {"whole": whole, "executor": executor}.items():
        if not allowed:
            pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        pod |= {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": name}}
        (tmp_path / "pod.json").write_text(json.dumps(pod))
        said = api.kubectl("create", "-f", str(tmp_path / "pod.json"), "--dry-run=server", fails=not allowed)
        assert ("created" if allowed else 'violates PodSecurity "restricted') in said


@pytest.mark.parametrize(
    ("verb", "what", "may"),
    [("create", "pods", True), ("deletecollection", "configmaps", True), ("get", "secrets", False),
     ("create", "pods --subresource=exec", False), ("create", "deployments", False)],
)  # fmt: skip
def test_drivers_may_do_what_they_have_to(api: ApiServer, verb: str, what: str, may: bool) -> None:
    said = api.kubectl("auth", "can-i", verb, *what.split(), "--as", ACCOUNT, fails=not may)
    assert may is (said.strip() == "yes")


class Podded(Flowing):
    """The app with executors that are pods."""

    def __init__(self, brokers: Brokers, apps: Drivers, api: ApiServer) -> None:
        super().__init__(brokers, apps)
        self.api = api

    def phases(self) -> dict[str, str]:
        """Of executors' pods, by name."""
        with self.api.client() as client:
            return {name: pod["status"]["phase"] for name, pod in pods_of(client).items()}

    def works(self) -> list[str]:
        return [name for name, phase in self.phases().items() if phase == "Running"]

    def settles(self) -> None:
        wait_until(lambda: len(self.works()) == 2, what="two pods run")

    def row(self) -> DriverRow:
        return self.apps.row(self.driver.incarnation)


@contextmanager
def podded(api: ApiServer, mariadb: MariaDB, home: Path) -> Iterator[Podded]:
    """The driver asks as the account that pods of the manifests have."""
    token = api.kubectl("create", "token", "penstock", "--duration", "1h").strip()
    conf = {
        "spark.kubernetes.authenticate.oauthToken": token,
        "spark.kubernetes.authenticate.caCertFile": str(api.certificate),
    }
    given = {
        "PENSTOCK_SPARK_MASTER": f"k8s://{api.url}", "PENSTOCK_KUBERNETES_NAMESPACE": NAMESPACE,
        "PENSTOCK_EXECUTOR_IMAGE": "penstock:0.2.0", "PENSTOCK_EXECUTOR_TEMPLATE": MANIFESTS / "executor.yaml",
        "PENSTOCK_DRIVER_HOST": "127.0.0.1", "PENSTOCK_APP_CORES": 2, "PENSTOCK_EXECUTOR_CORES": 1,
        "PENSTOCK_EXECUTOR_MEMORY": "512m", "PENSTOCK_LEASE_TTL": 8, "PENSTOCK_SPARK_CONF": json.dumps(conf),
    }  # fmt: skip
    with (
        Brokers(home, [free_port(2)]) as brokers,
        drivers(brokers, mariadb, home, CHAOS, **given) as apps,
        closing(Podded(brokers, apps, api)) as made,
    ):
        made.numbers.start()
        yield made


def test_streams_go_through_pods_that_end_and_drivers_that_are_killed(
    api: ApiServer, mariadb: MariaDB, tmp_path: Path
) -> None:
    with podded(api, mariadb, tmp_path / "home") as place:
        place.driver = place.apps.launch(APP)
        wait_until(lambda: place.row().state == "queued", what=f"it says that it waits: {place.driver.log}")
        assert place.row().reason == f"waits for executors: 2 cores, 1 with 512m each of k8s://{api.url}"
        assert set(place.phases().values()) == {"Pending"}
        with Node(api, tmp_path / "pods") as node:
            place.apps.wait_running(place.driver)
            place.goes_on()
            place.settles()
            command = " ".join(psutil.Process(place.row().pid).cmdline())
            assert "oauthToken" not in command, "every user may read a command line"

            first, second = place.works()
            place.recovers(lambda: api.kubectl("delete", "pod", first, "--wait=false"))
            place.settles()
            assert first not in place.works()
            place.recovers(node.process(second).kill)
            place.settles()
            place.exact()

            # Its executors see that it is gone, and end.
            left = place.works()
            assert place.driver.session.kill()
            wait_until(lambda: not set(place.works()) & set(left), what="pods that nobody needs have ended")
            place.driver = place.apps.launch(APP)
            place.apps.wait_running(place.driver)
            place.goes_on()
            place.exact()

            mine = place.works()
            place.apps.control.release(APP, ME)
            wait_until(lambda: not set(place.phases()) & set(mine), what="whoever drains takes its pods along")
    assert not list(PROJECT.glob("*.jar")), "the image's folder is not theirs to write to"
