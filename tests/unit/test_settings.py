"""What is mistyped in the environment is told by its name, and no secret with it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.settings import settings

WRONG = {
    "KAFKA_PORT": ("2919a", "PENSTOCK_KAFKA_PORT: Input should be a valid integer", "'2919a'"),
    "METRICS_PORT": ("99999", "PENSTOCK_METRICS_PORT: Input should be less than or equal to 65535", "'99999'"),
    "LEASE_TTL": ("1", "PENSTOCK_LEASE_TTL: Input should be greater than 3", "'1'"),
    "LOG_JSON": ("ja", "PENSTOCK_LOG_JSON: Input should be a valid boolean", "'ja'"),
    "SPARK_CONF": ("{a:1}", 'error parsing value for field "spark_conf"', "no JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistyped_setting_is_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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
    assert f"; got: {got}; to mend it: " in line
