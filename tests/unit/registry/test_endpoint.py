"""Where the schema registry is, and what its URL says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import RegistryError, SettingError
from penstock.registry import endpoint
from penstock.registry.endpoint import RegistryEndpoint
from tests.chaos.projects import other_project


@pytest.mark.parametrize(
    ("text", "url", "login"),
    [
        ("http://h:8081", "http://h:8081", ""),
        ("https://u:p%40%2F%3A@h/apis/ccompat/v7/", "https://h/apis/ccompat/v7", "u:p@/:"),
        ("https://u@h", "https://h", "u:"),
        ("http://[::1]:8081", "http://[::1]:8081", ""),
        (" http://u:p@a:1/ , http://b:2", "http://a:1,http://b:2", "u:p"),
    ],
)
def test_a_url_is_parted_from_its_login(text: str, url: str, login: str) -> None:
    found = RegistryEndpoint.parse(text, "ca.pem")
    assert (found.url, found.login, found.ca) == (url, login, "ca.pem")
    assert not login or login not in repr(found)


@pytest.mark.parametrize("text", ["h:8081", "ftp://u:hidden@h", "http://", "http://u:hidden@h:port", "http://h:99999"])
def test_another_url_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(SettingError, match="the URL of the schema registry is not valid") as e:
        RegistryEndpoint.parse(text)
    assert "hidden" not in str(e.value)


def test_it_is_found_by_a_setting_a_connection_or_the_environment(tmp_path: Path) -> None:
    connection = json.dumps({"conn_type": "penstock_schema_registry", "host": "https://h", "schema": "/apis/ccompat/v7",
                             "login": "u", "password": "p:/"})  # fmt: skip
    for variables, login in (
        ({"PENSTOCK_SCHEMA_REGISTRY_URL": "https://u:p@h/apis/ccompat/v7"}, "u:p"),
        ({"PENSTOCK_SCHEMA_REGISTRY_URL": "airflow://schemas", "AIRFLOW_CONN_SCHEMAS": connection}, "u:p:/"),
        ({"AIRFLOW_CONN_SCHEMA_REGISTRY": connection}, "u:p:/"),
    ):
        with other_project(tmp_path, {"PENSTOCK_HOME": tmp_path, **variables}):
            assert endpoint.is_configured()
            assert endpoint.find_endpoint() == RegistryEndpoint("https://h/apis/ccompat/v7", login)


def test_none_and_a_wrong_one_say_what_to_set(tmp_path: Path) -> None:
    with other_project(tmp_path, {"PENSTOCK_HOME": tmp_path}):
        assert not endpoint.is_configured()
        with pytest.raises(SettingError, match=r"no schema registry is configured.*PENSTOCK_REGISTRY=1 penstock up"):
            endpoint.find_endpoint()
    wrong = {"PENSTOCK_HOME": tmp_path, "AIRFLOW_CONN_SCHEMA_REGISTRY": "ftp://u:hidden@h"}
    with other_project(tmp_path, wrong), pytest.raises(RegistryError, match="of another type; got: ftp") as e:
        endpoint.find_endpoint()
    assert "hidden" not in str(e.value)
