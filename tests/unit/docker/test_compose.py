"""docker/compose.yaml: what it names exists, and says the same as penstock.devstack."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.cli import load
from penstock.devstack.servers.airflow import ApiServer, DagProcessor, Scheduler, Triggerer
from penstock.devstack.servers.airflow_layout import SECRETS, AirflowLayout
from penstock.devstack.servers.kafka import Broker
from penstock.java import jars
from penstock.settings import PROJECT, Settings
from tests.unit.docker.containers import (
    COMPOSE,
    DOCKER,
    IN_IMAGE,
    VARIABLE,
    commands,
    copied,
    environment,
    example,
    instructions,
    loaded,
    ours,
    secrets,
    services,
)

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
    prometheus = loaded(DOCKER / "prometheus" / "prometheus.yml")
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"127.0.0.1:{s.metrics_port}"]


def test_every_setting_of_airflow_exists(airflow: dict[str, Any]) -> None:
    used = airflow_settings(environment())
    assert len(used) > 20
    assert {at for at in used if at[1] not in airflow["options"].get(at[0], ())} == set()


def test_airflow_is_set_up_as_on_one_machine(tmp_path: Path) -> None:
    local = AirflowLayout(tmp_path, 18080, PROJECT).config()
    wanted = {(section, option): v for section, options in local.items() for option, v in options.items()}
    found = airflow_settings(environment())
    assert set(found) == set(wanted) | set(SECRETS)
    assert {at: v for at, v in found.items() if at in wanted and at not in PLACES} == {
        at: v for at, v in wanted.items() if at not in PLACES
    }
    assert found["core", "dags_folder"] == f"{IN_IMAGE}dags"
    assert found["core", "plugins_folder"] == f"{IN_IMAGE}plugins"
    # The file lies elsewhere, and is used in the same way.
    database = ("database", "sql_alchemy_conn")
    assert urlsplit(found[database]).query == urlsplit(wanted[database]).query


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
                command = load(rest[0])
                command.make_context(rest[0], rest[1:])  # a UsageError where an option does not exist
            case "docker/spark.sh":
                assert (Path(sys.executable).parent / "spark-class").exists()
                assert os.access(PROJECT / program, os.X_OK)
                assert program in copied()
                assert rest[0].replace(".", "/") + ".class" in classes
            case "python":
                assert rest[0] in copied()
            case _:
                assert program in copied()
                assert os.access(PROJECT / program, os.X_OK)
    assert seen == {"airflow", "penstock", "docker/spark.sh", "python", "docker/init.sh"}


def test_services_share_the_processes_and_network_of_one_machine() -> None:
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
