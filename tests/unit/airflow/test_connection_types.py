"""The connection types of the provider as Airflow reads them, and Connections of Airflow as settings find them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import jsonschema
import pytest

from penstock.errors import SettingError
from penstock.settings import PROJECT, connection_types, connections, settings
from tests.chaos.projects import other_project
from tests.support.caches import clear_caches
from tests.support.supervised_platform import Platform
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("airflow_home")

TYPES = {
    kinds[0]
    for kinds in vars(connection_types).values()
    if isinstance(kinds, tuple) and kinds and str(kinds[0]).startswith("penstock_")
}
# What Airflow's own processes do with the provider: find its hooks for the button, and its forms for the page.
FIND = """
import json
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
hooks = {name: hook for name, hook in manager.hooks.items() if name.startswith("penstock_")}
print(json.dumps({
    "hooks": {name: [hook.hook_name, hook.connection_id_attribute_name, hook.connection_testable, hook.hook_class_name]
              for name, hook in hooks.items()},
    "titles": {m.connection_type: m.hook_name for m in manager.iter_connection_type_hook_ui_metadata()},
    "fields": sorted(manager.connection_form_widgets), "behaviours": sorted(manager.field_behaviours),
}))
"""


def declared() -> list[dict[str, Any]]:
    from penstock.airflow.provider import get_provider_info

    types: list[dict[str, Any]] = get_provider_info()["connection-types"]
    return types


def test_the_types_are_as_airflow_s_schemas_describe_them() -> None:
    schema = json.loads((files("airflow") / "provider.yaml.schema.json").read_text())
    jsonschema.validate(declared(), schema["properties"]["connection-types"])
    assert {one["connection-type"] for one in declared()} == TYPES
    for one in declared():
        hook = resolve_name(one["hook-class-name"])
        assert (hook.conn_type, hook.hook_name) == (one["connection-type"], one["hook-name"])


def test_airflow_finds_hooks_and_forms_without_a_warning(tmp_path: Path) -> None:
    """In a process of its own, as Airflow keeps what it has found once."""
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO"}
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", FIND], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {*found["hooks"]} == TYPES
    for name, (title, attribute, testable, hook) in found["hooks"].items():
        assert (attribute, testable, found["titles"][name]) == ("conn_id", True, title)
        assert hook.startswith("penstock.airflow.hooks.")
    assert set(found["behaviours"]) >= TYPES
    assert "extra__penstock_kafka__sasl.mechanism" in found["fields"]
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if "penstock" in line and "warn" in line.lower()] == []


def test_a_form_gives_what_the_settings_read() -> None:
    """The fields of a form are those that Penstock reads of the extra."""
    fields = {one["connection-type"]: set(one.get("conn-fields", ())) for one in declared()}
    assert fields["penstock_kafka"] <= connection_types.KAFKA_EXTRAS.keys()
    assert fields["penstock_database"] == {"dialect"}
    extras = {name: name for name in fields["penstock_s3"]}
    read = connection_types.object_store_fields(connections.AirflowConnection("c", "penstock_s3", extra=extras))
    assert (read.url, read.region) == ("endpoint_url", "region_name")
    dialects = next(one for one in declared() if one["connection-type"] == "penstock_database")
    for dialect in filter(None, dialects["conn-fields"]["dialect"]["schema"]["enum"]):
        c = connections.AirflowConnection("c", "penstock_database", "h", extra={"dialect": dialect})
        assert connection_types.database_url(c, dialect)


@pytest.fixture
def in_airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Settings ask Airflow, as in its processes."""
    from penstock.airflow.connections import resolve_in_airflow

    resolve_in_airflow()
    clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    clear_caches()


def test_airflow_is_asked_for_a_connection(in_airflow: pytest.MonkeyPatch) -> None:
    from airflow.sdk import BaseHook, Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    known = {"brokers": Connection(
        conn_id="brokers", conn_type="penstock_kafka", host="b:1", login="u", password="s",
        extra='{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": null}',
    )}  # fmt: skip

    def get_connection(conn_id: str) -> Connection:
        if conn_id == "denied":
            raise PermissionError("a secret")
        if conn_id not in known:
            raise AirflowNotFoundException("none")
        return known[conn_id]

    in_airflow.setattr(BaseHook, "get_connection", get_connection)
    in_airflow.setenv("PENSTOCK_KAFKA_BOOTSTRAP", "airflow://brokers")
    clear_caches()
    assert (settings().bootstrap, settings().kafka.kafka_username) == ("b:1", "u")
    assert connections.find_text("none") == ""
    with pytest.raises(
        SettingError, match="Airflow does not tell the connection denied; got: PermissionError; hint"
    ) as e:
        connections.find("denied")
    assert "a secret" not in str(e.value)


def test_what_airflow_itself_parses_is_read_alike(in_airflow: pytest.MonkeyPatch) -> None:
    """A URI in the environment of one of Airflow's processes passes through Airflow."""
    from airflow.sdk import Connection

    from penstock.airflow.connections import connection_json

    for uri in (
        "mysql://u:p%40s@h:1/d?charset=utf8", "penstock-kafka://b1%3A9092%2Cb2%3A9092/?security.protocol=SSL",
        "aws://K:S@/?__extra__=%7B%22a%22%3A+%7B%22b%22%3A+1%7D%7D", "elasticsearch://https://h:9200",
        "postgresql://h", "mongo://u@h/admin",
    ):  # fmt: skip
        ours = connections.AirflowConnection.parse("c", uri)
        theirs = connections.AirflowConnection.parse("c", connection_json(Connection.from_uri(uri, "c")))
        assert ours == theirs, uri
        in_airflow.setenv("AIRFLOW_CONN_C", uri)
        assert connections.find("c") == ours


def test_dag_files_ask_airflow_for_nothing(in_airflow: pytest.MonkeyPatch) -> None:
    """They are parsed all the time; the id of a Connection stands for the host in the URIs of assets."""
    from penstock.airflow.dags import declare_dags

    def refuse(conn_id: str) -> str | None:
        raise AssertionError(conn_id)

    connections.set_lookup(refuse)
    variables = {"PENSTOCK_KAFKA_BOOTSTRAP": "airflow://brokers", "PENSTOCK_CONTROL_URL": "airflow://control"}
    with other_project(PROJECT / "tests" / "chaos" / "project", variables):
        [dag] = declare_dags("streams").values()
        [task] = dag.tasks
        uris = [asset.uri for asset in (*task.inlets, *task.outlets)]
    assert uris
    assert all(uri.startswith("kafka://brokers/") for uri in uris)
    in_airflow.setenv("PENSTOCK_MONGODB_URL", "airflow://documents")
    clear_caches()
    from penstock.lineage.datasets import _store_host

    assert _store_host("mongodb") == "documents"


CAPTURE = """CAPTURE INTO {name} FROM mysql {connection} KEY (id) CURSOR changed
EVERY 1 SECOND OVERLAP 1 SECOND AS SELECT * FROM {name}"""


def test_a_driver_is_given_the_connections_of_settings_and_captures(
    p: Platform, in_airflow: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from penstock.model.declaration import CAPTURES_APP
    from penstock.supervision import launch

    folder = tmp_path / "project" / "sql" / "captures"
    folder.mkdir(parents=True)
    for name, connection in (("a", "shop"), ("b", "till-2")):
        (folder / f"{name}.sql").write_text(CAPTURE.format(name=name, connection=connection))
    (folder / "broken.sql").write_text("CAPTURE")
    in_airflow.setenv("PENSTOCK_KAFKA_BOOTSTRAP", "airflow://brokers")
    clear_caches()
    connections.set_lookup({"brokers": "kafka://b", "shop": "mysql://s", "till-2": "mysql://t"}.get)
    own = {"AIRFLOW_CONN_BROKERS": "kafka://b"}
    assert launch.connection_variables("a") == own
    assert launch.connection_variables(CAPTURES_APP, tmp_path / "project") == own | {
        "AIRFLOW_CONN_SHOP": "mysql://s", "AIRFLOW_CONN_TILL_2": "mysql://t",
    }  # fmt: skip
    file = tmp_path / "given"
    write = f"import os; open({str(file)!r}, 'w').write(os.environ['AIRFLOW_CONN_BROKERS'])"
    p.supervisor(command=[sys.executable, "-c", f"{write}; import time; time.sleep(600)"]).tick()
    wait_until(lambda: file.exists() and file.read_text() == "kafka://b")


def test_a_command_of_a_task_is_given_the_connections(
    in_airflow: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from penstock.airflow import commands

    in_airflow.setenv("PENSTOCK_MONGODB_URL", "airflow://documents")
    clear_caches()
    connections.set_lookup({"documents": "mongo://u:hidden@h"}.get)
    code = "from penstock.sinks.core.connections import url; print(len(url('mongodb')))"
    in_airflow.setattr(commands, "COMMAND", ("-c", code))
    task = commands.RunBackfill(task_id="t", backfill="b", full_history=True)
    with caplog.at_level(logging.INFO):
        assert task.run_command([]) == str(len("mongodb://u:hidden@h"))
    assert "hidden" not in caplog.text


def test_the_button_of_a_key_of_masks_checks_its_form() -> None:
    from penstock.airflow.connection_probes import probe_mask_key

    def probe(text: str) -> str:
        fields = json.dumps({"conn_type": "penstock_mask_key", "password": text})
        return probe_mask_key(connections.AirflowConnection.parse("pii", fields))

    assert probe("A" * 43 + "=") == "a key of 32 bytes: hashes and encrypts"
    assert probe("A" * 27 + "=") == "a key of 20 bytes: hashes; to encrypt, it must have 16, 24 or 32 bytes"
    for text, why in (("hidden!", "is not base64"), ("A" * 12, "is too short; got: 9 bytes"), ("", "has no password")):
        with pytest.raises(SettingError, match=why) as e:
            probe(text)
        assert not text or text not in str(e.value)
