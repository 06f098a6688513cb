"""What Airflow Connections become as settings, and what is said of those that are no use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import logs
from penstock.codec.heartbeat import heartbeat_signer
from penstock.errors import SettingError, SinkError
from penstock.kafka.client import QUICK_CONNECT, client_config, client_id, spark_client_config
from penstock.object_store.bucket import filesystem
from penstock.object_store.endpoint import AWS, Endpoint, find_endpoint, is_configured
from penstock.settings import connections, settings
from penstock.settings.connection_types import (
    database_url,
    elasticsearch_url,
    influxdb_url,
    kafka_settings,
    mongodb_url,
    object_store_fields,
    schema_registry_url,
    views_token,
    webhook_url,
)
from penstock.settings.connections import AirflowConnection
from penstock.sinks.core import connections as stores
from penstock.views.api.server import token_of
from tests.support.caches import clear_caches

Variables = Callable[..., None]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Variables]:
    """Sets variables of the environment, which settings are then read from."""

    def assign(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        clear_caches()

    clear_caches()
    yield assign
    monkeypatch.undo()
    clear_caches()


def parse(text: str) -> AirflowConnection:
    return AirflowConnection.parse("c", text)


def as_json(conn_type: str, **fields: Any) -> str:
    return json.dumps({"conn_type": conn_type, **fields})


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("mysql://u:p%40s@h:1/d?charset=utf8", ("mysql", "h", 1, "u", "p@s", "d", {"charset": "utf8"})),
        ("penstock-kafka://h", ("penstock_kafka", "h", None, "", "", "", {})),
        ("postgresql://h", ("postgres", "h", None, "", "", "", {})),
        ("mongo://u:p@a:1,b:2/admin", ("mongo", "a:1,b:2", None, "u", "p", "admin", {})),
        ("kafka://b1%3A9092%2Cb2%3A9092/?x.y=z", ("kafka", "b1:9092,b2:9092", None, "", "", "", {"x.y": "z"})),
        ("elasticsearch://https://h:9200", ("elasticsearch", "https://h", 9200, "", "", "", {})),
        ("aws://K:S@/?__extra__=%7B%22a%22%3A+%7B%22b%22%3A+1%7D%7D", ("aws", "", None, "K", "S", "", {"a": {"b": 1}})),
        ('{"conn_type": "mysql", "port": "3306", "extra": "{\\"a\\": 1}"}', ("mysql", "", 3306, "", "", "", {"a": 1})),
        ('{"conn_type": "penstock-s3", "host": null, "extra": {}}', ("penstock_s3", "", None, "", "", "", {})),
    ],
)  # fmt: skip
def test_both_forms_of_a_connection_are_read_as_airflow_reads_them(text: str, fields: tuple[Any, ...]) -> None:
    c = parse(text)
    assert (c.conn_type, c.host, c.port, c.login, c.password, c.schema, dict(c.extra)) == fields


@pytest.mark.parametrize(
    "text",
    [
        "hidden",
        "{hidden",
        '["hidden"]',
        "mysql://u:p@hidden@h",
        "http://h:hidden",
        '{"port": "hidden"}',
        '{"extra": "hidden"}',
        '{"extra": ["hidden"]}',
    ],
)
def test_the_error_of_a_connection_that_cannot_be_read_has_no_secret(text: str) -> None:
    with pytest.raises(
        SettingError, match=r"connection c cannot be read.*; got: \w+, from Airflow or AIRFLOW_CONN_C; hint: "
    ) as e:
        parse(text)
    assert "hidden" not in str(e.value)
    assert "hidden" not in repr(AirflowConnection("c", password="hidden", extra={"a": "hidden"}))


@pytest.mark.parametrize("conn_type", ["penstock_kafka", "kafka"])
def test_brokers_and_login_of_kafka(conn_type: str, variables: Variables) -> None:
    text = as_json(
        conn_type,
        login="u",
        password="s",
        **({"host": "b", "port": 9093} if conn_type == "penstock_kafka" else {}),
        extra={"bootstrap.servers": "" if conn_type == "penstock_kafka" else "b:9093", "group.id": "other clients'",
               "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.key.location": None},
    )  # fmt: skip
    variables(PENSTOCK_KAFKA_BOOTSTRAP="airflow://brokers", AIRFLOW_CONN_BROKERS=text)
    assert settings().bootstrap == "b:9093"
    assert client_config("b:9093") == {
        "client.id": client_id(), "bootstrap.servers": "b:9093", "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "s", **QUICK_CONNECT,
    }  # fmt: skip
    jaas = spark_client_config("b:9093")["kafka.sasl.jaas.config"]
    assert jaas.endswith('PlainLoginModule required username="u" password="s";')
    assert client_config("other:1").keys() == {"bootstrap.servers", "client.id", *QUICK_CONNECT}


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (AirflowConnection("c", "mysql", "b"), "connection c is of another type; got: mysql; hint: it must be"),
        (AirflowConnection("c", "kafka"), "connection c names no brokers; got: type kafka; hint: fill in the host, or"),
        (
            AirflowConnection("c", "kafka", "b", login="u", password="hidden"),
            "connection c cannot be used: sasl.username or sasl.password is set, and security.protocol is PLAINTEXT",
        ),
        (
            AirflowConnection("c", "kafka", "b", extra={"security.protocol": "SASL_SSL"}),
            "connection c cannot be used: security.protocol=SASL_SSL needs sasl.username",
        ),
        (
            AirflowConnection("c", "kafka", "b", extra={"security.protocol": "TLS"}),
            "connection c cannot be used: security.protocol: Input should be 'PLAINTEXT', 'SSL'",
        ),
        (
            AirflowConnection("c", "kafka", "b", extra={"security.protocol": "SSL", "ssl.ca.location": "/none"}),
            "connection c cannot be used: ssl.ca.location: no PEM file of certificates",
        ),
        (
            AirflowConnection("c", "kafka", "b", extra={"sasl.oauthbearer.config": "hidden"}),
            "connection c has options that are not supported: sasl.oauthbearer.config",
        ),
        (
            AirflowConnection("c", "kafka", "b", extra={"Security_Protocol": "SSL"}),
            "connection c has options that are not supported: Security_Protocol",
        ),
    ],
)  # fmt: skip
def test_a_connection_that_gives_no_brokers(connection: AirflowConnection, message: str) -> None:
    with pytest.raises(SettingError) as e:
        kafka_settings(connection)
    assert message in str(e.value)
    assert "; hint: " in str(e.value)
    assert "hidden" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "dialect", "url"),
    [
        (as_json("penstock_database", host="h", login="u", password="p@", schema="d", extra={"dialect": "mysql"}),
         "mysql", "mysql+pymysql://u:p%40@h/d"),
        (as_json("postgres", host="h", port=1, extra={"sslmode": "require", "cursor": "dictcursor"}), "postgres",
         "postgresql+psycopg://h:1?sslmode=require"),
        (as_json("penstock_database", host="/data/x.db", extra={"dialect": "sqlite"}), "", "sqlite:////data/x.db"),
        ("sqlite://%2Fdata%2Fx.db", "sqlite", "sqlite:////data/x.db"),
        ("mysql+pymysql://u@h/d", "mysql", "mysql+pymysql://u@h/d"),
        (as_json("mysql", host="h", extra={"ssl": {"ca": "/ca", "check_hostname": False}}), "mysql",
         "mysql+pymysql://h?ssl_ca=%2Fca&ssl_check_hostname=false"),
        (as_json("mysql", host="h", extra={"ssl": '{"ca": "/ca"}', "ssl_disabled": False}), "mysql",
         "mysql+pymysql://h?ssl_ca=%2Fca"),
        ("mysql://h?ssl_ca=/ca&ssl_disabled=False&ssl_verify_identity=true", "mysql",
         "mysql+pymysql://h?ssl_ca=%2Fca&ssl_verify_identity=true"),
        (as_json("mysql", host="h", extra={"connect_timeout": 0, "local_infile": None}), "mysql",
         "mysql+pymysql://h?connect_timeout=0"),
    ],
)  # fmt: skip
def test_the_url_of_a_database(text: str, dialect: str, url: str) -> None:
    assert database_url(parse(text), dialect).render_as_string(hide_password=False) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (as_json("mysql"), "connection c has no host; got: type mysql; hint: fill in the host"),
        (as_json("penstock_database", host="h"), "connection c names no dialect.*choose mysql, postgres or sqlite"),
        (as_json("postgres", host="h"), "connection c is of another engine; got: postgres; hint: it must be mysql"),
        (as_json("kafka", host="h"), "connection c is of another engine; got: kafka; hint: it must be mysql"),
        (as_json("mysql", host="h", extra={"init_command": ["SET x"]}), "options that are not supported: init_command"),
        (as_json("mysql", host="h", extra={"ssl": {"ca": ["/ca"]}}), "options that are not supported: ssl_ca"),
        (as_json("mysql", host="h", extra={"ssl": "ca=/ca"}), "an extra `ssl` that is no object"),
        (as_json("mysql", host="h", extra={"ssl": True}), "an extra `ssl` that is no object"),
    ],
)
def test_a_connection_that_gives_no_database(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        database_url(parse(text), "mysql")


@pytest.mark.parametrize(
    ("read", "text", "url"),
    [
        (elasticsearch_url, as_json("penstock_elasticsearch", host="h", port=9200, login="u", password="p/@"),
         "http://u:p%2F%40@h:9200"),
        (elasticsearch_url, as_json("elasticsearch", host="h", schema="https"), "https://h"),
        (elasticsearch_url, as_json("elasticsearch", host="https://h", port=9243), "https://h:9243"),
        (elasticsearch_url, "https://u:p@h/es", "https://u:p@h/es"),
        (influxdb_url, as_json("penstock_influxdb", host="h", port=8086, schema="https"), "https://h:8086"),
        (schema_registry_url, as_json("penstock_schema_registry", host="https://h", login="u", password="p/@",
                                      schema="/apis/ccompat/v7"), "https://u:p%2F%40@h/apis/ccompat/v7"),
        (schema_registry_url, "https://u:p@h:8081/apis/ccompat/v7", "https://u:p@h:8081/apis/ccompat/v7"),
        (mongodb_url, as_json("penstock_mongodb", host="h", port=27017, login="u", password="p/@", schema="admin"),
         "mongodb://u:p%2F%40@h:27017/admin"),
        (mongodb_url, as_json("mongo", host="h", login="u", password="p", extra={"srv": True, "ssl": "true", "a": 1}),
         "mongodb+srv://u:p@h/?a=1&tls=true"),
        (mongodb_url, as_json("penstock_mongodb", host="h", extra={"srv": False, "ssl": None}), "mongodb://h"),
        (mongodb_url, "mongodb://a:1,b:2/?replicaSet=r", "mongodb://a:1,b:2/?replicaSet=r"),
        (webhook_url, as_json("penstock_webhook", password="https://h/x?t=1"), "https://h/x?t=1"),
        (webhook_url, as_json("slackwebhook", host="https://h/services", password="T/B"), "https://h/services/T/B"),
        (webhook_url, "https://h/hook", "https://h/hook"),
        (views_token, as_json("penstock_views", password="t"), "t"),
    ],
)  # fmt: skip
def test_the_url_or_token_of_other_kinds(read: Callable[[AirflowConnection], str], text: str, url: str) -> None:
    assert read(parse(text)) == url


@pytest.mark.parametrize("read", [elasticsearch_url, influxdb_url, mongodb_url, schema_registry_url])
def test_a_store_needs_a_host_and_its_type(read: Callable[[AirflowConnection], str]) -> None:
    kind = read.__name__.removesuffix("_url")
    with pytest.raises(SettingError, match=f"connection c has no host; got: type penstock_{kind}; hint: fill in"):
        read(parse(as_json(f"penstock_{kind}", password="hidden")))
    with pytest.raises(SettingError, match=f"of another type; got: ftp; hint: it must be penstock_{kind} or "):
        read(parse("ftp://u:hidden@h"))


def test_a_token_or_webhook_without_its_secret() -> None:
    with pytest.raises(SettingError, match="connection c has no password; got: type generic; hint: write the secret"):
        views_token(parse(as_json("generic", login="u")))
    with pytest.raises(SettingError, match="connection c has no URL; got: type penstock_webhook; hint: write"):
        webhook_url(parse(as_json("penstock_webhook", password="hooks.example")))


def test_an_object_store(variables: Variables) -> None:
    extra = {"endpoint_url": "http://h:9000", "region_name": "r"}
    text = as_json("penstock_s3", login="K", password="S", extra=extra)
    variables(PENSTOCK_S3_URL="airflow://lake", AIRFLOW_CONN_LAKE=text)
    endpoint = find_endpoint()
    assert endpoint is not None
    assert (endpoint.url, endpoint.region, endpoint.access_key, endpoint.secret_key) == ("http://h:9000", "r", "K", "S")
    variables(AIRFLOW_CONN_LAKE=as_json("aws", extra={"service_config": {"s3": {"endpoint_url": "http://i"}}}))
    endpoint = find_endpoint()
    assert endpoint is not None
    assert (endpoint.url, endpoint.region, endpoint.access_key) == ("http://i", "us-east-1", "")
    variables(AIRFLOW_CONN_LAKE=as_json("aws"))
    endpoint = find_endpoint()
    assert endpoint is not None
    assert endpoint.url == AWS
    with pytest.raises(SettingError, match=r"options that are not supported: role_arn.*give an access key"):
        object_store_fields(parse(as_json("aws", login="K", password="S", extra={"role_arn": "arn"})))
    with pytest.raises(SettingError, match=r"connection c has half of a key.*its secret as password"):
        object_store_fields(parse(as_json("aws", login="K")))


def test_each_setting_of_one_text_may_name_a_connection(variables: Variables) -> None:
    variables(
        PENSTOCK_CONTROL_URL="airflow://control", AIRFLOW_CONN_CONTROL="mysql://u:p@h/penstock_control",
        PENSTOCK_ELASTICSEARCH_URL="airflow://search", AIRFLOW_CONN_SEARCH="elasticsearch://u:p@h:9200",
        PENSTOCK_MONGODB_URL="airflow://documents", AIRFLOW_CONN_DOCUMENTS="mongo://u:p@h",
        PENSTOCK_INFLUXDB_URL="airflow://times", AIRFLOW_CONN_TIMES="http://u:p@h",
        PENSTOCK_VIEWS_TOKEN="airflow://views", AIRFLOW_CONN_VIEWS=as_json("penstock_views", password="t"),
        PENSTOCK_HEARTBEAT_SECRET="airflow://beat", AIRFLOW_CONN_BEAT=as_json("generic", password="b"),
        PENSTOCK_SPARK_SECRET="airflow://spark", AIRFLOW_CONN_SPARK=as_json("generic", password="s"),
        PENSTOCK_ALERT_WEBHOOK="airflow://alerts", AIRFLOW_CONN_ALERTS=as_json("penstock_webhook", password="http://a"),
    )  # fmt: skip
    s = settings()
    assert s.control == "mysql+pymysql://u:p@h/penstock_control"
    assert [stores.url(name) for name in stores.EXAMPLES] == ["http://u:p@h:9200", "mongodb://u:p@h", "http://u:p@h"]
    assert token_of("0.0.0.0") == "t"
    assert (s.secret("spark_secret"), s.secret("alert_webhook")) == ("s", "http://a")
    signer = heartbeat_signer()
    variables(PENSTOCK_HEARTBEAT_SECRET="b")
    assert signer == heartbeat_signer()
    assert s.connection_ids["spark_secret"] == "spark"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"KAFKA_BOOTSTRAP": "airflow://b", "KAFKA_USERNAME": "u", "KAFKA_PASSWORD": "hidden", "KAFKA_CA": ""},
         "names the connection b, which holds the login too: unset PENSTOCK_KAFKA_USERNAME, PENSTOCK_KAFKA_PASSWORD"),
        ({"S3_URL": "airflow://b", "S3_SECRET_KEY": "hidden"}, "which holds the key too: unset PENSTOCK_S3_ACCESS_KEY"),
        ({"KAFKA_BOOTSTRAP": "b:1", "KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_USERNAME": "u",
          "KAFKA_PASSWORD": "airflow://b"}, "PENSTOCK_KAFKA_PASSWORD names a Connection of Airflow; that may be"),
        ({"CHECKPOINTS": "airflow://b"}, "PENSTOCK_CHECKPOINTS names a Connection of Airflow; that may be done by"),
        ({"KAFKA_BOOTSTRAP": "airflow://"}, "PENSTOCK_KAFKA_BOOTSTRAP names no Connection: write airflow://ID"),
        ({"MONGODB_URL": "airflow://"}, "PENSTOCK_MONGODB_URL names no Connection: write airflow://ID"),
        ({"VIEWS_TOKEN": "airflow://u:hidden@h"}, "PENSTOCK_VIEWS_TOKEN names no Connection: write airflow://ID"),
    ],
)  # fmt: skip
def test_a_reference_that_is_not_one(values: dict[str, str], message: str, variables: Variables) -> None:
    variables(**{f"PENSTOCK_{name}": value for name, value in values.items()})
    with pytest.raises(SettingError) as e:
        settings()
    assert message in str(e.value)
    assert "hidden" not in str(e.value)


def test_a_connection_that_nobody_has_says_whether_airflow_was_asked(variables: Variables) -> None:
    variables(PENSTOCK_KAFKA_BOOTSTRAP="airflow://my-brokers", PENSTOCK_MONGODB_URL="airflow://documents")
    with pytest.raises(SettingError) as e:
        settings().bootstrap  # noqa: B018
    assert str(e.value) == (
        "connection my-brokers is missing; got: no AIRFLOW_CONN_MY_BROKERS in the environment; this process does not "
        "run in Airflow and cannot ask it; hint: set it, e.g. "
        "AIRFLOW_CONN_MY_BROKERS='kafka://user:password@host:9092'; if Airflow started this process, add it in Airflow "
        "and release the app"
    )
    connections.set_lookup(lambda _: None)
    with pytest.raises(SinkError, match=r"connection documents is missing; got: Airflow has no .*Admin > Conn"):
        stores.url("mongodb")
    assert stores.is_configured("mongodb"), "its driver reports it"
    # What was missing is looked for again.
    connections.set_lookup({"my-brokers": "kafka://b:1", "documents": "mongo://h"}.get)
    assert (settings().bootstrap, stores.url("mongodb")) == ("b:1", "mongodb://h")


def test_only_what_runs_may_ask_airflow(variables: Variables) -> None:
    """Not the files of DAGs, which are parsed all the time."""

    def refuse(conn_id: str) -> str | None:
        raise AssertionError(conn_id)

    variables(PENSTOCK_S3_URL="airflow://lake", PENSTOCK_MONGODB_URL="airflow://documents")
    connections.set_lookup(refuse)
    assert is_configured()
    assert stores.is_configured("mongodb")
    assert not stores.is_configured("influxdb")
    assert connections.find_text("lake", ask=False) == ""


def test_what_airflow_says_precedes_the_environment_and_is_passed_on(variables: Variables) -> None:
    variables(AIRFLOW_CONN_A="mysql://old", AIRFLOW_CONN_B="mysql://b")
    connections.set_lookup({"a": "mysql://new"}.get)
    assert connections.find("a").host == "new"
    assert connections.variables(["a", "b", "none"]) == {"AIRFLOW_CONN_A": "mysql://new", "AIRFLOW_CONN_B": "mysql://b"}


def test_a_process_asks_for_each_connection_once(variables: Variables) -> None:
    """A signal handler of a task needs the control database's, and must not ask."""
    asked: list[str] = []

    def count(conn_id: str) -> str:
        asked.append(conn_id)
        return {"control": "mysql://u@h/c", "brokers": "kafka://b:1"}[conn_id]

    variables(PENSTOCK_CONTROL_URL="airflow://control", PENSTOCK_KAFKA_BOOTSTRAP="airflow://brokers")
    connections.set_lookup(count)
    for _ in range(3):
        assert (settings().control, settings().bootstrap) == ("mysql+pymysql://u@h/c", "b:1")
    assert asked == ["control", "brokers"]


def test_a_webhook_that_is_missing_stops_nothing(variables: Variables, capsys: pytest.CaptureFixture[str]) -> None:
    variables(PENSTOCK_ALERT_WEBHOOK="airflow://alerts")
    logs.setup("test")
    assert "ERROR test penstock.alerts: alerts are not posted: connection alerts is missing" in capsys.readouterr().err


def test_two_connections_of_one_variable_are_refused(variables: Variables) -> None:
    """A driver gets them as variables, and would take one database for the other."""
    texts = {"shop-eu": as_json("mysql", host="eu"), "shop_eu": as_json("mysql", host="other")}
    connections.set_lookup(lambda conn_id: texts.get(conn_id, ""))
    assert connections.variables(["shop-eu"]) == {"AIRFLOW_CONN_SHOP_EU": texts["shop-eu"]}
    with pytest.raises(SettingError, match="connections shop-eu and shop_eu have one variable, AIRFLOW_CONN_SHOP_EU"):
        connections.variables(texts)
    connections.set_lookup(None)
    variables(AIRFLOW_CONN_SHOP_EU=texts["shop_eu"])
    assert list(connections.variables(texts)) == ["AIRFLOW_CONN_SHOP_EU"]


def test_one_key_of_an_object_store_is_not_enough() -> None:
    for access_key, secret_key in (("k", ""), ("", "s")):
        with pytest.raises(SinkError, match="an access key and a secret key of the object store go together; got: no"):
            filesystem(Endpoint("http://store.example", access_key=access_key, secret_key=secret_key))
