"""docs/settings.md lists every setting with its default and meaning."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from penstock.settings import PROJECT, Settings

PAGE = PROJECT / "docs" / "settings.md"
# Defaults that depend on the machine.
SHOWN_DEFAULTS = {
    "project": "the folder of this project",
    "home": "`.penstock` in the project",
    "cache": "`~/.cache/penstock`",
    "snapshot_readers": "the number of CPUs, at most 4",
}


def default(name: str, field: FieldInfo) -> str:
    if name in SHOWN_DEFAULTS:
        return SHOWN_DEFAULTS[name]
    value = field.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return f"`{json.dumps(value)}`" if value else ""
    if isinstance(value, SecretStr | str) and not (isinstance(value, SecretStr) and value.get_secret_value()):
        return f"`{value}`" if value else ""
    assert not isinstance(value, Path | SecretStr), f"{name} needs an entry in SHOWN_DEFAULTS"
    return f"{value:g}" if isinstance(value, float) else str(value)


def expected_rows() -> list[str]:
    return [
        f"| `PENSTOCK_{name.upper()}` | {default(name, field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]


def test_the_reference_lists_every_setting_with_its_default_and_meaning() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `PENSTOCK_")]
    assert sorted(rows) == sorted(
        [*expected_rows(), *(row for row in rows if row.startswith("| `PENSTOCK_SECRETS_DIR"))]
    )


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
