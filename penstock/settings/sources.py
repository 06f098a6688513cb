"""Where settings come from: variables of the environment, and the project's pyproject.toml."""

from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, PyprojectTomlConfigSettingsSource


class Variables(EnvSettingsSource):
    """Variables of the environment. An empty one of a folder is not set."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        return None if is_no_folder(field, value) else value, key, is_complex


class ProjectFile(PyprojectTomlConfigSettingsSource):
    """The table `tool.penstock` of the project's pyproject.toml. An empty folder in it is not set."""

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields
        return {
            name: value
            for name, value in super().__call__().items()
            if name not in fields or not is_no_folder(fields[name], value)
        }


def is_no_folder(field: FieldInfo, value: object) -> bool:
    """Whether a value is the empty text where a folder is wanted: as a path it would be the current folder."""
    return field.annotation is Path and value == ""
