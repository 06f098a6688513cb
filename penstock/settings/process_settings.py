"""All settings of a process, read from the environment once."""

import os
import sysconfig
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlparse

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from penstock.errors import SettingError
from penstock.settings import connections
from penstock.settings.connection_types import REFERABLE, TEXT_OF, kafka_settings, mask_key_text
from penstock.settings.kafka import KafkaSettings
from penstock.settings.masks import KEY_HINT, MaskSettings, decode_key, texts_of_keys
from penstock.settings.monitoring import MonitoringSettings
from penstock.settings.project import find_project, table_of
from penstock.settings.sources import ProjectFile, Variables
from penstock.settings.spark import SparkSettings, local_master_url
from penstock.settings.stores import StoreSettings
from penstock.settings.supervision import SupervisionSettings
from penstock.settings.types import Folder
from penstock.settings.views import ViewSettings

SECRETS = "PENSTOCK_SECRETS_DIR"
LIBRARY = Path(__file__).resolve().parent.parent.parent
"""The folder that `penstock` is imported from: a checkout, or the packages of an environment."""
PROJECT = LIBRARY
"""The checkout, for its tests."""
INSTALLED = str(LIBRARY) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
"""Whether the library is among the packages of this environment: it needs no entry in PYTHONPATH, and there these would
hide Python's own modules."""
CLUSTER_MARK = "cluster"
"""A file in the home of an embedded cluster, so that commands need no ``PENSTOCK_CLUSTER``."""
BROKERS = 3
"""Number of brokers of the embedded cluster."""


class Settings(
    KafkaSettings,
    StoreSettings,
    MaskSettings,
    ViewSettings,
    SparkSettings,
    SupervisionSettings,
    MonitoringSettings,
    BaseSettings,
):
    """All settings of a process; times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_", frozen=True, pyproject_toml_table_header=("tool", "penstock")
    )

    project: Folder = Field(
        default_factory=lambda: find_project(LIBRARY), description="folder that holds jobs/, sql/ and dags/"
    )
    home: Folder = Field(
        default_factory=lambda data: data["project"] / ".penstock",
        description="folder of data, logs and checkpoints of this machine",
    )
    cache: Folder = Field(
        Path.home() / ".cache" / "penstock", description="folder of downloaded jars and binaries, shared by checkouts"
    )
    environment: str = Field("local", description="field `environment` of the receipts that the meter writes")
    cluster: bool = Field(
        default=False,
        description="embedded cluster: `penstock up` starts three brokers, a Spark master and workers instead of one "
        "broker; "
        "a home keeps the form in which it was first started",
    )
    mariadb_port: int = Field(13306, ge=1, le=65535, description="port of the embedded MariaDB")
    airflow_port: int = Field(18080, ge=1, le=65535, description="port of Airflow's API server")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """After variables and secrets, the table `tool.penstock` of the project's pyproject.toml."""
        project = Path(os.environ.get("PENSTOCK_PROJECT") or find_project(LIBRARY))
        # Pydantic's reader of the same file would raise errors of its own.
        table_of(project)
        file = ProjectFile(settings_cls, project.resolve())
        named = {**named, "env_settings": Variables(settings_cls)}
        return (*sources, *named.values(), file)

    @model_validator(mode="before")
    @classmethod
    def _add_cluster_defaults(cls, values: Any) -> Any:
        """Take `cluster` from the home if it is not set; with it, change the defaults of master and replication."""
        if not isinstance(values, dict):
            return values
        try:
            home = Path(values.get("home") or Path(values.get("project") or find_project(LIBRARY)) / ".penstock")
        except TypeError:
            return values  # The field is refused.
        values = {"cluster": (home / CLUSTER_MARK).exists()} | values
        if str(values["cluster"]).strip().lower() in ("true", "1", "yes", "on", "t", "y"):
            port = values.get("spark_port") or cls.model_fields["spark_port"].default
            defaults: dict[str, Any] = {"spark_master": local_master_url(port)}
            if not values.get("kafka_bootstrap"):
                defaults["replication"] = BROKERS
            values = defaults | values
        return values

    @model_validator(mode="after")
    def _connections_are_named_where_they_may_be(self) -> Self:
        for name in type(self).model_fields:
            value = _text(getattr(self, name))
            if not value.startswith(connections.SCHEME):
                continue
            if name not in REFERABLE:
                raise ValueError(
                    f"PENSTOCK_{name.upper()} names a Connection of Airflow; that may be done by "
                    + ", ".join(f"PENSTOCK_{other.upper()}" for other in REFERABLE)
                )
            try:
                connections.connection_id(value)
            except ValueError as e:
                raise ValueError(f"PENSTOCK_{name.upper()} names no Connection: {e}") from None
        if connections.connection_id(_text(self.s3_url)) and (
            self.s3_access_key or self.s3_secret_key.get_secret_value()
        ):
            raise ValueError(
                "PENSTOCK_S3_URL names a Connection, which holds the key too: unset PENSTOCK_S3_ACCESS_KEY and "
                "PENSTOCK_S3_SECRET_KEY"
            )
        return self

    @property
    def connection_ids(self) -> dict[str, str]:
        """The Connections of Airflow that settings name, by the setting."""
        named = {name: connections.connection_id(_text(getattr(self, name))) for name in REFERABLE}
        return {name: conn_id for name, conn_id in named.items() if conn_id}

    def secret(self, name: str) -> str:
        """The text of a secret setting; if it names a Connection of Airflow, what that says. Never log it.

        Raises:
            SettingError: The Connection does not exist, is of another type, or incomplete.
        """
        value = _text(getattr(self, name))
        if not (conn_id := connections.connection_id(value)):
            return value
        if name not in self._resolved:
            self._resolved[name] = TEXT_OF[name](connections.find(conn_id))
        return self._resolved[name]

    def mask_key(self, name: str, *, encrypts: bool) -> bytes:
        """A key of masks: of `mask_keys`, or else of the Connection of that id. Never log it.

        Args:
            name: The name of the key.
            encrypts: Whether it is a key of AES, of 16, 24 or 32 bytes.

        Raises:
            SettingError: There is none, or it is not valid.
        """
        text = texts_of_keys(self.mask_keys).get(name)
        if text is None:
            try:
                connection = connections.find(name, '{"conn_type": "generic", "password": "KEY"}')
            except SettingError as e:
                if connections.find_text(name):
                    raise
                set_it = f'PENSTOCK_MASK_KEYS=\'{{"{name}": "..."}}\''
                hint = f"{e.hint}; or set {set_it}; {KEY_HINT}"
                raise SettingError(f"key {name} of masks is missing", got=e.got, hint=hint) from None
            text = mask_key_text(connection)
        return decode_key(name, text, encrypts=encrypts)

    @cached_property
    def _resolved(self) -> dict[str, str]:
        """What Connections said: a process that was told once is not told again."""
        return {}

    @cached_property
    def kafka(self) -> KafkaSettings:
        """The brokers and the login: these settings, or what the Connection says that they name.

        Raises:
            SettingError: The Connection does not exist, is of another type, or incomplete.
        """
        conn_id = connections.connection_id(self.kafka_bootstrap)
        return kafka_settings(connections.find(conn_id, "kafka://user:password@host:9092")) if conn_id else self

    @property
    def import_paths(self) -> list[str]:
        """Folders for PYTHONPATH: the project, and the checkout of Penstock if it is not installed."""
        return list(dict.fromkeys([str(self.project), *([] if INSTALLED else [str(LIBRARY)])]))

    @property
    def python_path(self) -> str:
        """PYTHONPATH of a process that works on the project: `import_paths`, and what this process has."""
        inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        return os.pathsep.join(dict.fromkeys([*self.import_paths, *inherited]))

    @property
    def broker_ports(self) -> list[int]:
        """Ports of the embedded brokers."""
        return [self.kafka_port + 2 * i for i in range(BROKERS if self.cluster else 1)]

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers. SettingError if the Connection that names them is no use."""
        return self.kafka.kafka_bootstrap or ",".join(f"127.0.0.1:{port}" for port in self.broker_ports)

    @property
    def control(self) -> str:
        """SQLAlchemy URL of the control database, password included: never log it. SettingError as for `secret`."""
        return (
            self.secret("control_url")
            or f"mysql+pymysql://penstock:penstock@127.0.0.1:{self.mariadb_port}/penstock_control"
        )

    @property
    def checkpoint_root(self) -> str:
        return self.checkpoints or str(self.home / "checkpoints")

    @property
    def checkpoint_folder(self) -> Path | None:
        """The folder of checkpoints; None if they are in a store."""
        url = urlparse(self.checkpoint_root)
        return Path(url.path) if url.scheme in ("", "file") else None

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def airflow_url(self) -> str:
        return f"http://127.0.0.1:{self.airflow_port}"


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return value if isinstance(value, str) else ""


@cache
def settings() -> Settings:
    """The settings of this process.

    Raises:
        SettingError: A setting has no valid value. The message does not contain the values of secrets.
    """
    folder = os.environ.get(SECRETS) or None
    if folder and not (Path(folder).is_absolute() and Path(folder).is_dir()):
        hint = "give the whole path of the folder with the secrets, or unset it"
        raise SettingError(f"{SECRETS} is not a folder", got=folder, hint=hint)
    try:
        return Settings(_secrets_dir=folder)
    except ValidationError as e:
        errors = [
            (error["loc"], error["msg"].removeprefix("Value error, "), error["input"])
            for error in e.errors()
            # The default of `home` depends on another field, which is refused.
            if error["type"] != "default_factory_not_called"
        ]
        # An error of a model validator has no location: it concerns several settings.
        for location, message, _ in errors:
            if not location:
                raise SettingError(message) from None
        invalid = [(str(location[0]), message, value) for location, message, value in errors]
        secret = {name for name, field in Settings.model_fields.items() if field.annotation is SecretStr}
        raise SettingError(
            "; ".join(f"PENSTOCK_{name.upper()}: {message}" for name, message, _ in invalid),
            got=", ".join("(a secret)" if name in secret else repr(value) for name, _, value in invalid),
            hint="correct it, or unset it to use the default",
        ) from None
    except SettingsError as e:
        raise SettingError(
            str(e),
            got="not JSON",
            hint="""write it as JSON, such as PENSTOCK_SPARK_CONF='{"spark.ui.enabled": "true"}'""",
        ) from None


def misspelled_variables() -> dict[str, str]:
    """Variables of the environment that look like a misspelled setting, each with the setting it resembles.

    Settings of a system, such as `PENSTOCK_METRICS_...`, are only considered if its module is imported.
    """
    names, system_prefixes = {SECRETS}, list[str]()
    models: list[type[BaseSettings]] = BaseSettings.__subclasses__()
    for model in models:
        prefix = str(model.model_config.get("env_prefix") or "")
        if prefix.startswith("PENSTOCK_"):
            names |= {f"{prefix}{field}".upper() for field in model.model_fields}
            system_prefixes += [prefix] if model is not Settings else []
    misspelled = {}
    for name in sorted(os.environ):
        if not name.startswith("PENSTOCK_") or name in names:
            continue
        prefix = next((prefix for prefix in system_prefixes if name.startswith(prefix)), "PENSTOCK_")
        # With a system's prefix it can only be meant as a setting; without, it may be a variable of the project.
        cutoff = 0.0 if prefix in system_prefixes else 0.84
        candidates = {other.removeprefix(prefix): other for other in names if other.startswith(prefix)}
        if matches := get_close_matches(name.removeprefix(prefix), candidates, 1, cutoff):
            misspelled[name] = candidates[matches[0]]
    return misspelled
