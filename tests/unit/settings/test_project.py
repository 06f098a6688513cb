"""The project is where one works; what it sets is a setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import SettingError
from penstock.settings import LIBRARY, Settings, process_settings, settings
from penstock.settings.project import find_project


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("PROJECT", "HOME", "KAFKA_PORT"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    shop = tmp_path / "shop"
    (shop / "jobs" / "orders").mkdir(parents=True)
    (shop / "pyproject.toml").write_text("[tool.penstock]\nkafka_port = 29092\n")
    (shop / "jobs" / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    yield shop
    settings.cache_clear()


def test_it_is_the_nearest_folder_that_says_so(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (shop, shop / "jobs" / "orders"):
        monkeypatch.chdir(folder)
        configured = Settings()
        assert (configured.project, configured.home) == (shop, shop / ".penstock")
        assert configured.kafka_port == 29092
    monkeypatch.setenv("PENSTOCK_KAFKA_PORT", "39092")
    assert Settings().kafka_port == 39092


def test_a_variable_names_another(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.parent)
    monkeypatch.setenv("PENSTOCK_PROJECT", str(shop))
    configured = Settings()
    assert (configured.project, configured.kafka_port) == (shop, 29092)


@pytest.mark.parametrize("in_file", ["", "home = ''\n", "home = '/data'\n"])
def test_an_empty_folder_is_one_that_is_not_set(shop: Path, monkeypatch: pytest.MonkeyPatch, in_file: str) -> None:
    (shop / "pyproject.toml").write_text(f"[tool.penstock]\n{in_file}")
    monkeypatch.chdir(shop / "jobs")
    default = Settings()
    for name in ("PROJECT", "HOME", "CACHE"):
        monkeypatch.setenv(f"PENSTOCK_{name}", "")
    configured = Settings()
    assert (configured.project, configured.cache) == (shop, default.cache)
    assert configured.home == (Path("/data") if "data" in in_file else shop / ".penstock")


def test_a_relative_path_in_the_file_begins_at_the_project(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["home = 'data'", "cache = '../jars'", "checkpoints = 'ck'", "executor_template = 'pod.yaml'"]
    (shop / "pyproject.toml").write_text("\n".join(["[tool.penstock]", *lines]))
    monkeypatch.chdir(shop / "jobs")
    configured = Settings()
    assert (configured.home, configured.cache) == (shop / "data", shop / "../jars")
    assert configured.checkpoint_root == str(shop / "ck")
    assert configured.executor_template == str(shop / "pod.yaml")


@pytest.mark.parametrize("place", ["s3a://bucket/ck", "file:///ck", "/ck", ""])
def test_a_whole_path_and_a_url_in_the_file_are_as_they_are(
    shop: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (shop / "pyproject.toml").write_text(f"[tool.penstock]\ncheckpoints = '{place}'")
    monkeypatch.chdir(shop)
    assert Settings().checkpoints == place


@pytest.mark.parametrize("name", ["PROJECT", "HOME", "CACHE", "CHECKPOINTS", "EXECUTOR_TEMPLATE", "CONTROL_CA"])
@pytest.mark.parametrize("path", ["ck", "./ck"])
def test_a_relative_path_in_a_variable_is_refused(
    shop: Path, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    monkeypatch.chdir(shop)
    monkeypatch.setenv(f"PENSTOCK_{name}", path)
    settings.cache_clear()
    with pytest.raises(SettingError, match=f"PENSTOCK_{name}: .*give the whole path"):
        settings()


def test_elsewhere_it_is_the_checkout_or_the_current_folder(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.parent)
    assert Settings().project == LIBRARY
    assert find_project(shop.parent / "site-packages") == shop.parent


@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[tool.penstock", r"pyproject\.toml cannot be read; got: .*; hint: correct it"),
        ("[tool.penstock]\nenvironment = 'caf\xe9'".encode("latin-1"), r"pyproject\.toml cannot be read; got: 'utf-8'"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, r"pyproject\.toml cannot be read"),
        (None, r"pyproject\.toml cannot be read; got: .*directory"),
        (b"tool = 3", r"pyproject\.toml: `tool` is no table; got: 3; hint: write .* \[tool\.penstock\]"),
        (b"tool = 'penstock'", r"`tool` is no table"),
        (b"[tool]\npenstock = [1]", r"`tool\.penstock` is no table; got: \[1\]"),
        (b"[tool.penstock]\nhome = 3", r"PENSTOCK_HOME: .*path.*; got: 3; hint"),
        (b"[tool.penstock]\nkafka_port = 'x'", r"PENSTOCK_KAFKA_PORT: [^;]*integer[^;]*; got: 'x'; hint"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_use_is_an_error(
    shop: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str, named: bool
) -> None:
    if named:
        monkeypatch.setenv("PENSTOCK_PROJECT", str(shop))
    monkeypatch.chdir(shop.parent if named else shop)
    file = shop / "pyproject.toml"
    file.unlink()
    file.mkdir() if content is None else file.write_bytes(content)
    settings.cache_clear()
    with pytest.raises(SettingError, match=message):
        settings()


def test_an_installed_library_is_not_put_on_the_path_of_processes(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    assert Settings().import_paths == [str(shop), str(LIBRARY)]
    monkeypatch.setattr(process_settings, "INSTALLED", True)
    assert Settings().import_paths == [str(shop)]
