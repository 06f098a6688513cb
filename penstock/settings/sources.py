"""Where settings come from: variables of the environment, and the project's pyproject.toml."""

from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PyprojectTomlConfigSettingsSource

from penstock.settings.types import PATH


class Variables(EnvSettingsSource):
    """Variables of the environment. An empty one of a folder is not set."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        return None if is_no_folder(field, value) else value, key, is_complex


class ProjectFile(PyprojectTomlConfigSettingsSource):
    """The table `tool.penstock` of the project's pyproject.toml.

    A relative path in it begins at the project's folder, whatever the current one is. An empty folder is not set.
    """

    def __init__(self, settings_cls: type[BaseSettings], project: Path) -> None:
        super().__init__(settings_cls, project / "pyproject.toml")
        self._project = project

    def __call__(self) -> dict[str, Any]:
        fields, located = self.settings_cls.model_fields, located_settings(self.settings_cls)
        return {
            name: self._located(value) if name in located else value
            for name, value in super().__call__().items()
            if name not in fields or not is_no_folder(fields[name], value)
        }

    def _located(self, path: object) -> object:
        """A path from the project's folder on. Checkpoints may be at a URL."""
        if not isinstance(path, str) or not path or urlparse(path).scheme:
            return path
        return str(self._project / path)


def located_settings(settings_cls: type[BaseSettings]) -> set[str]:
    """The names of the settings that are paths on this host."""
    return {name for name, field in settings_cls.model_fields.items() if PATH in field.metadata}


def is_no_folder(field: FieldInfo, value: object) -> bool:
    """Whether a value is the empty text where a folder is wanted: as a path it would be the current folder."""
    return field.annotation is Path and value == ""
