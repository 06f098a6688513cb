"""docker/kubernetes/: each manifest is of its schema, and says what docker/compose.yaml and Penstock itself say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from penstock.devstack.servers.airflow_layout import SECRETS
from penstock.engine import session
from penstock.errors import SettingError
from penstock.settings import Settings, settings
from tests.unit.docker.containers import DOCKER, commands, copied, environment, instructions, loaded, ours, script

pytestmark = pytest.mark.processes

MANIFESTS = DOCKER / "kubernetes"
# The oldest with sidecars for good, and the newest whose schemas there are.
VERSIONS = ("1.33", "1.37")
TEMPLATE = "executor.yaml"
SECRET = re.compile(r"(?i)password|secret|token|fernet_key|_key$|url$|^AIRFLOW_CONN_")
# What compose.yaml has of Airflow's, and a pod elsewhere: whatever is reached by another name.
OTHERWISE = {"AIRFLOW__API__BASE_URL"}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def kustomization() -> dict[str, Any]:
    found: dict[str, Any] = loaded(MANIFESTS / "kustomization.yaml")
    return found


def manifests() -> list[dict[str, Any]]:
    """All that is applied, and the pod that executors are made after."""
    return [one for name in (*kustomization()["resources"], TEMPLATE) for one in documents(name)]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] == kind]


def one_of(kind: str, name: str) -> dict[str, Any]:
    return next(one for one in of_kind(kind) if one["metadata"]["name"] == name)


def pod() -> dict[str, Any]:
    found: dict[str, Any] = of_kind("StatefulSet")[0]["spec"]["template"]["spec"]
    return found


def template() -> dict[str, Any]:
    found: dict[str, Any] = documents(TEMPLATE)[0]["spec"]
    return found


def containers() -> dict[str, dict[str, Any]]:
    """All containers, the executor's too, by name."""
    return {c["name"]: c for c in (*pod()["initContainers"], *pod()["containers"], *template()["containers"])}


def given() -> dict[str, str]:
    found: dict[str, str] = one_of("ConfigMap", "penstock-settings")["data"]
    return found


def probes(of: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (of[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in of)


def names(node: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a manifest with its value, however deep."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(node, dict):
            yield str(key), value
        if isinstance(value, dict | list):
            yield from names(value)


# Schema


@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_is_of_its_schema(version: str) -> None:
    found = manifests()
    assert {one["kind"] for one in found} >= {"StatefulSet", "Service", "Role", "RoleBinding", "ServiceAccount", "Pod"}
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)


def test_a_mistake_is_refused() -> None:
    wrong = documents("penstock.yaml")[0]
    wrong["spec"]["template"]["spec"]["containers"][0]["comand"] = ["x"]
    with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_every_file_is_applied() -> None:
    used = set(kustomization()["resources"]) | {f for g in kustomization()["configMapGenerator"] for f in g["files"]}
    assert used == {path.name for path in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"}


# What they refer to


def test_objects_that_pods_name_exist() -> None:
    generated = {g["name"] for g in kustomization()["configMapGenerator"]}
    for spec in (pod(), template()):
        assert {"kind": "ServiceAccount", "name": spec["serviceAccountName"]}.items() <= {
            "kind": "ServiceAccount",
            "name": one_of("ServiceAccount", spec["serviceAccountName"])["metadata"]["name"],
        }.items()
        claims = {v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v}
        assert claims == {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")}
        assert {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v} <= generated
    has = {v["name"] for v in pod()["volumes"]}
    has |= {v["metadata"]["name"] for v in of_kind("StatefulSet")[0]["spec"]["volumeClaimTemplates"]}
    mounted = {m["name"] for c in containers().values() for m in c["volumeMounts"]}
    assert mounted == has
    assert {e["configMapRef"]["name"] for c in containers().values() for e in c.get("envFrom", ())} == {
        "penstock-settings"
    }
    binding = of_kind("RoleBinding")[0]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("penstock", pod()["serviceAccountName"])


def test_the_drivers_have_a_name_that_executors_find() -> None:
    whole = of_kind("StatefulSet")[0]
    headless = one_of("Service", whole["spec"]["serviceName"])["spec"]
    assert headless["clusterIP"] == "None"
    # A driver may want executors while Airflow's scheduler is not ready.
    assert headless["publishNotReadyAddresses"] is True
    labels = whole["spec"]["template"]["metadata"]["labels"]
    assert all(service["spec"]["selector"] == labels for service in of_kind("Service"))
    assert documents(TEMPLATE)[0]["metadata"]["labels"].items().isdisjoint(labels.items())
    env = {e["name"]: e.get("value") for e in containers()["scheduler"]["env"]}
    assert env["PENSTOCK_DRIVER_HOST"] == f"$(POD_NAME).{whole['spec']['serviceName']}.$(POD_NAMESPACE).svc"
    # Kubernetes puts in only what stands before.
    assert list(env)[:3] == ["POD_NAME", "POD_NAMESPACE", "PENSTOCK_DRIVER_HOST"]
    ports = {p["name"] for c in containers().values() for p in c.get("ports", ())}
    assert {p["targetPort"] for p in one_of("Service", "penstock")["spec"]["ports"]} == ports


def test_what_the_pod_shares_is_what_one_machine_shares() -> None:
    spec = pod()
    assert of_kind("StatefulSet")[0]["spec"]["replicas"] == 1
    assert spec["shareProcessNamespace"] is True
    [home] = {m["mountPath"] for c in containers().values() for m in c["volumeMounts"] if m["name"] == "home"}
    assert home == "/var/lib/penstock"
    checkpoints = {
        m["mountPath"] for c in containers().values() for m in c["volumeMounts"] if m["name"] == "checkpoints"
    }
    assert checkpoints == {"/var/lib/penstock/checkpoints"}


def test_the_first_container_makes_the_folders_that_a_new_volume_lacks(tmp_path: Path) -> None:
    stubs, file = tmp_path / "stubs", tmp_path / "home" / "airflow" / "passwords.json"
    stubs.mkdir()
    file.parent.parent.mkdir()
    for name in ("airflow", "penstock"):
        (stubs / name).write_text("#!/bin/sh\n")
        (stubs / name).chmod(0o755)
    (stubs / "python").symlink_to(sys.executable)
    env = {
        "PATH": f"{stubs}:{os.environ['PATH']}", "AIRFLOW_ADMIN_PASSWORD": "x",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(file),
    }  # fmt: skip
    for _ in range(2):
        done = subprocess.run(["sh", DOCKER / "init.sh"], env=env, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(file.read_text()) == {"admin": "x"}
        assert file.stat().st_mode & 0o077 == 0


# Images, commands, probes


def test_one_image_with_the_commands_that_compose_runs() -> None:
    [image] = {c["image"] for c in containers().values()}
    assert {s["image"] for s in ours().values()} == {image, given()["PENSTOCK_EXECUTOR_IMAGE"]}
    [changed] = kustomization()["images"]
    assert f"{changed['newName']}:{changed['newTag']}" == image
    assert changed["name"] == image.partition(":")[0]
    known = [*commands(), ["docker/init.sh"], ["docker/executor.sh"]]
    for name, container in containers().items():
        assert container["command"] in known, name
    assert "docker/executor.sh" in copied()
    assert os.access(DOCKER / "executor.sh", os.X_OK)
    assert ["penstock", "migrate"] in script()


def test_probes_ask_what_compose_asks() -> None:
    known = commands()
    for name, container in containers().items():
        found = list(probes(container))
        assert bool(found) == (name not in ("init", "spark-kubernetes-executor")), name
        for probe in found:
            if "exec" in probe:
                assert probe["exec"]["command"] in known
            else:
                assert probe["httpGet"]["port"] in {p["name"] for p in container["ports"]}
                assert probe["httpGet"]["path"].startswith("/api/v2/")
    # To restart it is to end all drivers.
    assert "livenessProbe" not in containers()["scheduler"]
    assert containers()["api-server"]["restartPolicy"] == "Always"


def test_no_container_is_root_or_has_more_rights_than_it_needs() -> None:
    user = next(rest for word, rest in instructions() if word == "USER")
    for spec in (pod(), template()):
        context = spec["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for name, container in containers().items():
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        # Spark puts in those of executors.
        assert ("resources" in container) == (name != "spark-kubernetes-executor")
    assert template()["automountServiceAccountToken"] is False
    for rule in of_kind("Role")[0]["rules"]:
        assert "*" not in json.dumps(rule)
        assert not {"secrets", "pods/exec"} & set(rule["resources"])


# Settings


def test_every_setting_exists_and_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env = given() | {e["name"]: e.get("value", "x") for e in containers()["scheduler"]["env"]}
    known = {f"PENSTOCK_{name.upper()}" for name in Settings.model_fields} | {"PENSTOCK_SECRETS_DIR"}
    used = {name: value for name, value in env.items() if name.startswith("PENSTOCK_")}
    assert used.keys() <= known
    (tmp_path / "penstock_control_url").write_text("mysql+pymysql://u:p@db/x")
    (tmp_path / "airflow_fernet_key").write_text("no setting of Penstock")
    for name, value in used.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(tmp_path))
    monkeypatch.setattr("penstock.java.jars.jars_of", lambda _: [Path("/jars/connector.jar")])
    settings.cache_clear()
    s = settings()
    assert s.control == "mysql+pymysql://u:p@db/x"
    assert (s.kubernetes_namespace, s.replication) == (kustomization()["namespace"], 3)
    mount = next(m["mountPath"] for m in containers()["scheduler"]["volumeMounts"] if m["name"] == "executor")
    assert s.executor_template == f"{mount}/{TEMPLATE}"
    conf = session.submit_conf("shop")
    assert conf["spark.kubernetes.namespace"] == "penstock"
    assert conf["spark.kubernetes.container.image"] == "penstock:0.2.0"
    assert conf["spark.kubernetes.executor.podTemplateFile"] == s.executor_template
    assert conf["spark.driver.host"] == s.driver_host
    assert (conf["spark.executor.instances"], conf["spark.executor.cores"]) == ("2", "1")
    assert conf["spark.authenticate"] == "true"
    assert "spark.authenticate.secret" not in conf, "Kubernetes makes one for each application"


def test_executors_without_an_image_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "k8s://https://kubernetes.default.svc")
    monkeypatch.setattr("penstock.java.jars.jars_of", lambda _: [])
    settings.cache_clear()
    with pytest.raises(SettingError, match="PENSTOCK_EXECUTOR_IMAGE"):
        session.submit_conf("shop")


def test_airflow_is_set_up_as_in_compose() -> None:
    def airflows(env: dict[str, str]) -> dict[str, str]:
        secret = {f"AIRFLOW__{section}__{option}".upper() for section, option in SECRETS}
        return {k: v for k, v in env.items() if k.startswith("AIRFLOW__") and k.removesuffix("_CMD") not in secret}

    found, wanted = airflows(given()), airflows(environment())
    assert found.keys() == wanted.keys()
    assert {k: v for k, v in found.items() if k not in OTHERWISE} == {
        k: v for k, v in wanted.items() if k not in OTHERWISE
    }


# Secrets


def test_no_secret_is_in_plain_text() -> None:
    mounts = {m["name"]: m["mountPath"] for m in containers()["scheduler"]["volumeMounts"]}
    for section, option in SECRETS:
        # Airflow runs it to get the value: the variable holds where it lies, not what it is.
        command = given()[f"AIRFLOW__{section}__{option}_CMD".upper()]
        assert re.fullmatch(rf"cat {mounts['secrets']}/airflow_\w+", command)
    assert given()["PENSTOCK_SECRETS_DIR"] == mounts["secrets"]
    plain = {k for k in given() if SECRET.search(k) and not k.endswith(("_CMD", "_DIR", "_FILE", "_URL"))}
    assert plain == set()
    for one in manifests():
        assert one["kind"] != "Secret"
        for key, value in names(one):
            assert not (isinstance(value, str) and "://" in value and "@" in value), key
    for container in containers().values():
        for variable in container.get("env", ()):
            if SECRET.search(variable["name"]):
                assert "value" not in variable, variable["name"]
                assert variable["valueFrom"]["secretKeyRef"]["name"] == "penstock"


# With Kubernetes's own tools


def test_kustomize_puts_it_together() -> None:
    words = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if not shutil.which(words[0]):
        pytest.skip("there is neither kustomize nor kubectl on PATH")
    done = subprocess.run([*words, str(MANIFESTS)], check=True, capture_output=True, text=True)
    found = list(yaml.safe_load_all(done.stdout))
    for one in found:
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    whole = next(one for one in found if one["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    made = next(v["configMap"]["name"] for v in whole["volumes"] if "configMap" in v)
    assert made in {one["metadata"]["name"] for one in found if one["kind"] == "ConfigMap"}
