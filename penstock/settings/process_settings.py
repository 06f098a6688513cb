"""All settings of a process, read from the environment once."""

import os
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from penstock.errors import SettingError
from penstock.settings.kafka import KafkaSettings
from penstock.settings.monitoring import MonitoringSettings
from penstock.settings.spark import SparkSettings, local_master_url
from penstock.settings.stores import StoreSettings
from penstock.settings.supervision import SupervisionSettings
from penstock.settings.views import ViewSettings

SECRETS = "PENSTOCK_SECRETS_DIR"
PROJECT = Path(__file__).resolve().parent.parent.parent
CLUSTER_MARK = "cluster"
"""A file of a home: who comes without the variable finds the brokers and the master that its data lies on."""
BROKERS = 3
"""Embedded brokers of a cluster."""


class Settings(
    KafkaSettings,
    StoreSettings,
    ViewSettings,
    SparkSettings,
    SupervisionSettings,
    MonitoringSettings,
    BaseSettings,
):
    """All settings of a process; times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", frozen=True)

    project: Path = Field(PROJECT, description="folder that holds jobs/, sql/ and dags/")
    home: Path = Field(PROJECT / ".penstock", description="data, logs and checkpoints of this machine")
    cache: Path = Field(
        Path.home() / ".cache" / "penstock", description="downloaded jars and binaries, shared by checkouts"
    )
    environment: str = Field("local", description="the `environment` of the platform's own receipts")
    cluster: bool = Field(
        default=False,
        description="`make up` starts three brokers, a Spark master and workers here, not one broker; a home keeps to "
        "what it was first started with",
    )
    mariadb_port: int = Field(13306, ge=1, le=65535)
    airflow_port: int = Field(18080, ge=1, le=65535)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_a_cluster(cls, given: Any) -> Any:
        """Of what is not given, what follows from `cluster`, and that from the home."""
        if not isinstance(given, dict):
            return given
        home = Path(given.get("home") or cls.model_fields["home"].default)
        marked = {"cluster": (home / CLUSTER_MARK).exists()}
        given = marked | given
        if str(given["cluster"]).strip().lower() in ("true", "1", "yes", "on", "t", "y"):
            port = given.get("spark_port") or cls.model_fields["spark_port"].default
            follows = {"spark_master": local_master_url(port)}
            given = follows | ({} if given.get("kafka_bootstrap") else {"replication": BROKERS}) | given
        return given

    @property
    def broker_ports(self) -> list[int]:
        """Ports of the embedded brokers."""
        return [self.kafka_port + 2 * i for i in range(BROKERS if self.cluster else 1)]

    @property
    def bootstrap(self) -> str:
        return self.kafka_bootstrap or ",".join(f"127.0.0.1:{port}" for port in self.broker_ports)

    @property
    def control(self) -> str:
        """SQLAlchemy URL of the control database, password included: never log it."""
        return (
            self.control_url.get_secret_value()
            or f"mysql+pymysql://penstock:penstock@127.0.0.1:{self.mariadb_port}/penstock_control"
        )

    @property
    def checkpoint_root(self) -> str:
        return self.checkpoints or str(self.home / "checkpoints")

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def airflow_url(self) -> str:
        return f"http://127.0.0.1:{self.airflow_port}"


@cache
def settings() -> Settings:
    """The settings of this process. SettingError, without the value of one that is secret."""
    folder = os.environ.get(SECRETS) or None
    if folder and not (Path(folder).is_absolute() and Path(folder).is_dir()):
        hint = "give the whole path of the folder of the secrets, or unset it"
        raise SettingError(f"{SECRETS} is no folder", got=folder, hint=hint)
    try:
        return Settings(_secrets_dir=folder)
    except ValidationError as e:
        if together := [one["msg"].removeprefix("Value error, ") for one in e.errors() if not one["loc"]]:
            raise SettingError(together[0]) from None
        wrong = [(str(one["loc"][0]), one["msg"].removeprefix("Value error, "), one["input"]) for one in e.errors()]
        secret = {name for name, field in Settings.model_fields.items() if field.annotation is SecretStr}
        raise SettingError(
            "; ".join(f"PENSTOCK_{name.upper()}: {said}" for name, said, _ in wrong),
            got=", ".join("(a secret)" if name in secret else repr(value) for name, _, value in wrong),
            hint="set it anew, or unset it for what it is by default",
        ) from None
    except SettingsError as e:
        raise SettingError(
            str(e),
            got="no JSON",
            hint="""write it as JSON, such as PENSTOCK_SPARK_CONF='{"spark.ui.enabled": "true"}'""",
        ) from None


def misspelled_variables() -> dict[str, str]:
    """Variables of the environment that are no setting of what is loaded and look as if they were meant to be one, with
    the name of it. Those of a system, as `PENSTOCK_METRICS_...`, are known once its declarations are."""
    known, families = {SECRETS}, list[str]()
    models: list[type[BaseSettings]] = BaseSettings.__subclasses__()
    for model in models:
        prefix = str(model.model_config.get("env_prefix") or "")
        if prefix.startswith("PENSTOCK_"):
            known |= {f"{prefix}{field}".upper() for field in model.model_fields}
            families += [prefix] if model is not Settings else []
    found = {}
    for name in sorted(os.environ):
        if not name.startswith("PENSTOCK_") or name in known:
            continue
        family = next((prefix for prefix in families if name.startswith(prefix)), "PENSTOCK_")
        # Of a system's own nothing else can be meant; of the rest a project may have variables of its own.
        cutoff = 0.0 if family in families else 0.84
        near = {one.removeprefix(family): one for one in known if one.startswith(family)}
        if close := get_close_matches(name.removeprefix(family), near, 1, cutoff):
            found[name] = near[close[0]]
    return found
