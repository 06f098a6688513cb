"""Invalid settings are reported by name and without secrets; the reference lists every setting."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import certifi
import pytest
from pydantic import SecretStr, ValidationError
from typer.testing import CliRunner

from jobs.agents import AgentsSettings
from penstock.cli import app
from penstock.control.database import ControlDatabase
from penstock.errors import SettingError
from penstock.kafka.client import QUICK_CONNECT, client_config, spark_client_config
from penstock.settings import Settings, misspelled_variables, settings
from tests.support.caches import clear_caches

WRONG = {
    "KAFKA_PORT": ("2919a", "PENSTOCK_KAFKA_PORT: Input should be a valid integer", "'2919a'"),
    "METRICS_PORT": ("99999", "PENSTOCK_METRICS_PORT: Input should be less than or equal to 65535", "'99999'"),
    "LEASE_TTL": ("1", "PENSTOCK_LEASE_TTL: Input should be greater than 3", "'1'"),
    "LOG_JSON": ("ja", "PENSTOCK_LOG_JSON: Input should be a valid boolean", "'ja'"),
    "SPARK_CONF": ("{a:1}", 'error parsing value for field "spark_conf"', "not JSON"),
}


def test_no_default_port_is_one_of_outgoing_connections() -> None:
    """Linux gives them 32768 and above: a server that takes such a port may find it in use."""
    ports = {name: field.default for name, field in Settings.model_fields.items() if name.endswith("_port")}
    assert len(ports) > 9
    assert {name: port for name, port in ports.items() if not 1024 <= port < 32768 - 10} == {}


def test_white_space_around_a_url_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        *(f"{store}_url" for store in ("control", "elasticsearch", "influxdb", "mongodb", "s3", "schema_registry")),
        "alert_webhook", "iceberg_catalog", "page_url", "views_url",
    ]  # fmt: skip
    for name in names:
        monkeypatch.setenv(f"PENSTOCK_{name.upper()}", f" http://{name}\n")
    found = Settings().model_dump()
    texts = {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in found.items()}
    assert {name: texts[name] for name in names} == {name: f"http://{name}" for name in names}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_setting_is_one_error_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    value, said, got = WRONG[name]
    monkeypatch.setenv(f"PENSTOCK_{name}", value)
    settings.cache_clear()
    try:
        found = CliRunner().invoke(app, ["streams", "list"])
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert found.exit_code == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith(f"error: {said}")
    assert f"; got: {got}; hint: " in line


@pytest.mark.parametrize(
    ("place", "got"),
    [
        ("mysql+pymysql://u:a@secret@127.0.0.1:1/db", "an @ in the host or the database"),
        ("mysql+pymysql://u:a@sec/ret@127.0.0.1:1/db", "an @ in the host or the database"),
        ("mysql+pymysql://u:b@127.0.0.1:secret/db", "ValueError"),
        ("mysql+pymysql:/u:secret@127.0.0.1/db", "ArgumentError"),
        ("mysql+secret://u:b@127.0.0.1/db", "NoSuchModuleError"),
    ],
)
def test_an_invalid_control_url_is_reported_without_its_password(
    monkeypatch: pytest.MonkeyPatch, place: str, got: str
) -> None:
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", place)
    clear_caches()
    try:
        found = CliRunner().invoke(app, ["streams", "list"])
    finally:
        monkeypatch.undo()
        clear_caches()
    assert (found.exit_code, "secret" in found.output) == (1, False)
    assert found.stderr.startswith(f"error: PENSTOCK_CONTROL_URL is no URL of a database; got: {got}; hint: ")
    assert (
        ControlDatabase("mysql+pymysql://u:secret@127.0.0.1:1/db?key=secret").display_url
        == "mysql+pymysql://u:***@127.0.0.1:1/db"
    )


INVALID_COMBINATIONS: dict[str, tuple[dict[str, str], str]] = {
    "KAFKA_CA": ({"KAFKA_CA": "/nowhere.pem"}, "PENSTOCK_KAFKA_CA: no PEM file of certificates"),
    "CONTROL_CA": ({"CONTROL_CA": __file__}, "PENSTOCK_CONTROL_CA: no PEM file of certificates"),
    "embedded": ({"KAFKA_SECURITY_PROTOCOL": "SSL"}, "set PENSTOCK_KAFKA_BOOTSTRAP"),
    "no user": ({"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_BOOTSTRAP": "b:1"}, "needs PENSTOCK_KAFKA_USERNAME"),
    "plain": ({"KAFKA_PASSWORD": "hidden"}, "PENSTOCK_KAFKA_SECURITY_PROTOCOL is PLAINTEXT, which does not log in"),
    "half": (
        {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_BOOTSTRAP": "b:1", "KAFKA_KEY": "/k"},
        "PENSTOCK_KAFKA_CERTIFICATE and PENSTOCK_KAFKA_KEY must be set together",
    ),
    "no key": (
        {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_BOOTSTRAP": "b:1", "KAFKA_KEY": "/k", "KAFKA_CERTIFICATE": "/c"},
        "are no certificate and its key, as PEM files: No such file",
    ),
    "relative path": ({"KAFKA_CA": "ca.pem"}, "PENSTOCK_KAFKA_CA: servers and drivers run in folders of their own"),
    "relative URL": (
        {"CHECKPOINTS": "file:ck"},
        "PENSTOCK_CHECKPOINTS: servers and drivers run in folders of their own",
    ),
    "host in URL": ({"CHECKPOINTS": "file://ck/a"}, "PENSTOCK_CHECKPOINTS: servers and drivers run in folders of"),
    "embedded database": ({"CONTROL_CA": certifi.where()}, "PENSTOCK_CONTROL_CA is for an external database"),
    "relative folder": ({"SECRETS_DIR": "secrets"}, "give the whole path of the folder with the secrets"),
    "folder": ({"SECRETS_DIR": "/nowhere"}, "PENSTOCK_SECRETS_DIR is not a folder; got: /nowhere"),
}


@pytest.mark.parametrize("name", INVALID_COMBINATIONS)
def test_settings_that_exclude_each_other_are_one_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    given, said = INVALID_COMBINATIONS[name]
    for variable, value in given.items():
        monkeypatch.setenv(f"PENSTOCK_{variable}", value)
    settings.cache_clear()
    try:
        with pytest.raises(SettingError, match=re.escape(said)) as raised:
            settings()
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert "hidden" not in str(raised.value)


def test_a_secret_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "PENSTOCK_KAFKA_PASSWORD").write_text("of the file\n")
    (tmp_path / "penstock_control_url").write_text("sqlite:///of-the-file\n")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", "sqlite:///of-the-variable")
    for name, value in (("BOOTSTRAP", "b:1"), ("SECURITY_PROTOCOL", "SASL_SSL"), ("USERNAME", "u")):
        monkeypatch.setenv(f"PENSTOCK_KAFKA_{name}", value)
    settings.cache_clear()
    try:
        assert settings().kafka_password.get_secret_value() == "of the file"
        assert settings().control == "sqlite:///of-the-variable"
        assert "of the file" not in repr(settings())
        told = spark_client_config("b:1")
        assert told["kafka.sasl.jaas.config"].endswith('ScramLoginModule required username="u" password="of the file";')
        assert client_config("b:1")["sasl.password"] == "of the file"
        # Those of a test, or of the training run, are others.
        assert client_config("b:2").keys() == {"bootstrap.servers", "client.id", *QUICK_CONNECT}
    finally:
        monkeypatch.undo()
        settings.cache_clear()


@pytest.mark.processes
def test_a_misspelled_variable_is_reported_with_the_setting_it_resembles(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("jobs.metrics")
    assert misspelled_variables() == {}
    wrong = {
        "PENSTOCK_KAFKA_BOOTSTAP": "PENSTOCK_KAFKA_BOOTSTRAP",
        "PENSTOCK_STUCK_AFTR": "PENSTOCK_STUCK_AFTER",
        "PENSTOCK_METRICS_DISTINKT": "PENSTOCK_METRICS_DISTINCT",
        "PENSTOCK_METRICS_GRAZE": "PENSTOCK_METRICS_GRACE",
    }
    right = ("METRICS_PORT", "METRICS_GRACE", "KAFKA_BOOTSTRAP", "TEST_MONGODB_URL", "SHOP_REGION")
    for name in [*wrong, *(f"PENSTOCK_{name}" for name in right)]:
        monkeypatch.setenv(name, "1")
    assert misspelled_variables() == wrong
    found = CliRunner().invoke(app, ["topics", "--help"])
    assert "warning: PENSTOCK_STUCK_AFTR is not a setting and has no effect; did you mean PENSTOCK_STUCK_AFTER?" in (
        found.stderr
    )


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5", 1.5), ("PT25M", 1500), ("P30D", 30 * 86_400)])
def test_a_duration_is_seconds_or_iso(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("PENSTOCK_AGENTS_OFFLINE_AFTER", text)
    assert AgentsSettings().offline_after.total_seconds() == seconds


@pytest.mark.parametrize("text", ["-5", "0", "0.0001", "soon", "nan", "25m", ""])
def test_an_invalid_duration_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PENSTOCK_AGENTS_OFFLINE_AFTER", text)
    with pytest.raises(ValidationError):
        AgentsSettings()
