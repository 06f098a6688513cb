"""Connections whose fields are what no store takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import SettingError
from penstock.settings.connection_types import database_url, mongodb_url, object_store_fields
from penstock.settings.connections import AirflowConnection

DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    "text",
    [
        '{"login": "hidden\\ud800"}',
        '{"password": "hidden\\udfff"}',
        '{"extra": "{\\"a\\": [\\"hidden\\\\ud800\\"]}"}',
        "http://hidden\udcff@h",
        '{"extra": ' + DEEP + "}",
        '{"extra": "' + DEEP + '"}',
        '{"port": 1e999}',
        '{"host": {"hidden": 1}}',
        '{"password": ["hidden"]}',
    ],
    ids=["login", "password", "extra", "URI", "deep", "deep text", "port", "host", "list"],
)
def test_what_cannot_be_read_is_a_clear_error(text: str) -> None:
    with pytest.raises(
        SettingError, match=r"connection c cannot be read.*; got: \w+, from Airflow or AIRFLOW_CONN_C; hint: "
    ) as e:
        AirflowConnection.parse("c", text)
    assert "hidden" not in str(e.value)


@pytest.mark.parametrize("service", [3, "http://i", ["s3"], {"s3": "http://i"}, {"s3": [1]}])
def test_a_service_config_that_is_no_object_is_refused(service: Any) -> None:
    with pytest.raises(SettingError, match=r"connection c has a `service_config` that is no object; .*hint: write"):
        object_store_fields(connection("aws", {"service_config": service, "endpoint_url": "http://e"}))


@pytest.mark.parametrize("empty", [{}, {"service_config": None}, {"service_config": {"s3": None}}])
def test_without_a_service_config_the_endpoint_counts(empty: dict[str, Any]) -> None:
    assert object_store_fields(connection("aws", {**empty, "endpoint_url": "http://e"})).url == "http://e"


@pytest.mark.parametrize(
    ("read", "conn_type", "extra", "name"),
    [
        (object_store_fields, "aws", {"endpoint_url": ["http://e"]}, "endpoint_url"),
        (object_store_fields, "aws", {"service_config": {"s3": {"endpoint_url": {"a": 1}}}}, "endpoint_url"),
        (object_store_fields, "aws", {"region_name": {"a": 1}}, "region_name"),
        (mongodb_url, "mongo", {"readPreference": {"a": 1}}, "readPreference"),
        (database_url, "mysql", {"charset": ["utf8"]}, "charset"),
    ],
)
def test_options_that_are_no_texts_are_refused(
    read: Callable[[AirflowConnection], object], conn_type: str, extra: dict[str, Any], name: str
) -> None:
    with pytest.raises(SettingError, match=rf"has options that are not supported: {name}; .*hint: write texts"):
        read(connection(conn_type, extra))


def test_tls_options_that_are_nested_too_deep_are_refused() -> None:
    with pytest.raises(SettingError, match="an extra `ssl` that is no object"):
        database_url(connection("mysql", {"ssl": DEEP}))


def connection(conn_type: str, extra: dict[str, Any]) -> AirflowConnection:
    return AirflowConnection.parse("c", json.dumps({"conn_type": conn_type, "host": "h", "extra": extra}))
