"""One typed object for every setting, read from the environment once.

Each field is the variable ``PENSTOCK_<FIELD>`` in capitals, e.g. ``PENSTOCK_KAFKA_PORT=19092``, or what is in the file
of that name in the folder that ``PENSTOCK_SECRETS_DIR`` names; a variable goes before a file.
"""

import os
import re
import ssl
import sys
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlparse

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from penstock.errors import SettingError

SECRETS = "PENSTOCK_SECRETS_DIR"
PROJECT = Path(__file__).resolve().parent.parent
# In a home: whoever comes to it without the variable finds the brokers and the master that its data lies on.
CLUSTER_MARK = "cluster"
BROKERS = 3
# As Java takes the size of a heap.
MEMORY = r"^[1-9][0-9]*[mgMG]$"


def _seconds(given: object) -> object:
    return float(given) if isinstance(given, str) and re.fullmatch(r"\s*\d{1,12}(\.\d*)?\s*", given) else given


def _absolute(given: str) -> str:
    if given and not Path(given).is_absolute():
        raise ValueError("parts and drivers run in folders of their own: give the whole path")
    return given


def _authority(given: str) -> str:
    if _absolute(given):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(given)
        except OSError as e:
            raise ValueError(f"no PEM file of certificates: {e.strerror or e}") from None
    return given


def _checkpoints(given: str) -> str:
    place = urlparse(given)
    if place.scheme in ("s3", "s3n"):
        raise ValueError("write s3a:// for an object store")
    if place.scheme == "s3a" and not place.netloc:
        raise ValueError("name a bucket: s3a://bucket/path")
    return given


# A path; empty for none.
Absolute = Annotated[str, AfterValidator(_absolute)]
# The path of a CA's certificates; empty for none.
Authority = Annotated[str, AfterValidator(_authority)]
# Of a variable: ISO 8601 (`PT25M`), or seconds, which pydantic takes of numbers only.
Length = Annotated[timedelta, BeforeValidator(_seconds)]


class Placement(BaseModel):
    """What one app asks of a cluster; what is not given is as for all apps. memory: JVM heap of one executor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int | None = Field(None, ge=1)
    executor_cores: int | None = Field(None, ge=1)
    memory: str | None = Field(None, pattern=MEMORY)


class Settings(BaseSettings):
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
    kafka_port: int = Field(
        19092,
        ge=1,
        le=65530,
        description="embedded broker; its controller takes the next port, two more brokers of a cluster the next four",
    )
    kafka_bootstrap: str = Field("", description="brokers; empty means the embedded one")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how the brokers of `kafka_bootstrap` are reached"
    )
    kafka_ca: Authority = Field("", description="PEM file of the CAs of brokers; empty: those of the system")
    kafka_certificate: Absolute = Field(
        "", description="PEM file of a client's certificate, for brokers that ask for one"
    )
    kafka_key: Absolute = Field("", description="PEM file (PKCS#8) of that certificate's key")
    kafka_key_password: SecretStr = Field(SecretStr(""), description="of the key, if it has one")
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    kafka_username: str = ""
    kafka_password: SecretStr = SecretStr("")
    replication: int = Field(1, ge=1, description="replicas of declared topics; 3 on the brokers of `cluster`")
    mariadb_port: int = Field(13306, ge=1, le=65535)
    airflow_port: int = Field(18080, ge=1, le=65535)
    metrics_port: int = Field(19464, ge=1, le=65535, description="Prometheus endpoint of the meter")
    metrics_host: str = Field("127.0.0.1", description="address it listens on")
    control_url: SecretStr = Field(
        SecretStr(""), description="SQLAlchemy URL of the control database; empty means the embedded MariaDB"
    )
    control_ca: Authority = Field(
        "",
        description="PEM file of the CA of the control database's certificate: TLS is then asked for, and the name in "
        "the certificate checked",
    )

    influxdb_url: SecretStr = Field(
        SecretStr(""), description="InfluxDB 1.x, user and password in the URL; empty means that none is written to"
    )
    mongodb_url: SecretStr = Field(
        SecretStr(""), description="MongoDB, user and password in the URL; empty means that none is written to"
    )
    elasticsearch_url: SecretStr = Field(
        SecretStr(""), description="Elasticsearch, user and password in the URL; empty means that none is written to"
    )
    s3_url: SecretStr = Field(
        SecretStr(""),
        description="object store of the archives: its endpoint, or `s3://` for AWS itself; empty means that none is "
        "written to",
    )
    s3_region: str = Field("us-east-1", description="region of the object store")
    s3_access_key: str = Field(
        "", description="access key; empty takes what AWS's own tools would: variables, files, role"
    )
    s3_secret_key: SecretStr = Field(SecretStr(""), description="the secret of the access key")
    s3_make_buckets: bool = Field(default=False, description="make a bucket that is not there; here it always is made")
    stores: str = Field("", description="stores of sinks that `make up` starts here: elasticsearch mongodb influxdb")
    elasticsearch_port: int = Field(19200, description="embedded Elasticsearch; its transport takes the next port")
    mongodb_port: int = 37017
    influxdb_port: int = Field(18086, description="embedded InfluxDB; its RPC takes the next port")
    s3_port: int = Field(19900, ge=1, le=65535, description="embedded object store; it runs unless one is given")

    views_instances: int = Field(
        1, ge=0, le=64, description="processes that share the partitions of the views; 0 serves none"
    )
    views_standby: int = Field(0, ge=0, le=63, description="copies of each partition beside its owner's")
    views_host: str = Field("127.0.0.1", description="address that instances of the views listen on")
    views_port: int = Field(19470, ge=1, le=65472, description="port of the first instance; the next has the next")
    views_url: str = Field(
        "", description="how other instances reach one on this host; `{port}` is put in. Empty: the address"
    )
    views_token: SecretStr = Field(
        SecretStr(""), description="what callers of the views send; empty means what <home>/views.token keeps, if any"
    )

    beat_secret: SecretStr = Field(
        SecretStr(""), description="proves heartbeats; empty means the one that <home>/beat.secret keeps"
    )
    checkpoints: Annotated[str, AfterValidator(_checkpoints)] = Field(
        "",
        description="folder of checkpoints, or `s3a://bucket/path` in the object store; empty means <home>/checkpoints",
    )
    spark_master: str = Field("local[2]", description="Spark master; 2 cores by default, the one here with `cluster`")
    deploy: Literal["client", "cluster"] = Field("client", description="`cluster`: drivers of streams live on workers")
    spark_secret: SecretStr = Field(
        SecretStr(""),
        description="what Spark's processes on several hosts know each other by; empty means what <home>/spark.secret "
        "keeps",
    )
    spark_port: int = Field(
        17077, ge=1, le=65500, description="embedded Spark master; its page takes the next port, each worker two more"
    )
    workers: int = Field(2, ge=1, le=16, description="embedded Spark workers")
    worker_cores: int = Field(
        8, ge=1, description="cores that each embedded worker hands out; it may be more than there are"
    )
    worker_memory: str = Field("6g", pattern=MEMORY, description="memory that each embedded worker hands out")
    app_cores: int = Field(2, ge=1, description="cores of all executors of one app, where the master is no local one")
    executor_cores: int = Field(1, ge=1, description="cores of one executor")
    executor_memory: str = Field("512m", pattern=MEMORY, description="JVM heap of one executor")
    executor_python: str = Field("", description="Python of executors; empty means the driver's path of it")
    executor_image: str = Field("", description="image of executors, where the master is Kubernetes")
    executor_template: Absolute = Field("", description="file of a pod that they are made after there; empty: none")
    kubernetes_namespace: str = Field("default", description="namespace of executors there")
    driver_host: str = Field("", description="where executors elsewhere reach this host; empty leaves it to Spark")
    placement: dict[str, Placement] = Field(
        {}, description="cores and memory of single apps, instead of the three above, as JSON"
    )
    driver_memory: str = Field("768m", description="JVM heap of one driver")
    java_options: str = Field("", description="options of a driver's JVM, instead of those that were measured best")
    spark_conf: dict[str, str] = Field({}, description="Spark settings over those that were measured best, as JSON")

    snapshot_readers: int = Field(
        min(4, os.cpu_count() or 1), ge=1, description="processes that read the snapshot of a large table"
    )

    lease_ttl: float = Field(15.0, gt=3, description="seconds without renewal until a lease may be taken")
    progress_every: float = Field(2.0, gt=0, description="seconds between progress reports")
    stuck_after: float = Field(
        30.0, gt=0, description="seconds of driver silence after which it is taken for hung and killed"
    )
    drain_timeout: float = Field(60.0, gt=0, description="seconds a draining driver gets before it is killed")
    supervise_every: float = Field(1.0, gt=0, description="seconds between two looks of the supervisor")
    supervise_epoch: float = Field(3600.0, gt=0, description="seconds after which a supervising run ends")
    measure_every: float = Field(15.0, gt=0, description="seconds between two samples of the platform by itself")
    delays: dict[str, str] = Field(
        {"alerts": "window_end"},
        description="topics whose rows say when they were due, with the field that does, in epoch ms; as JSON",
    )
    log_json: bool = Field(default=False, description="log JSON lines instead of text")
    alert_webhook: SecretStr = Field(
        default=SecretStr(""), description="URL that gets WARN and above as JSON posts; empty is off"
    )

    @model_validator(mode="after")
    def _together(self) -> Self:
        """What says how brokers are reached, and what that needs."""
        protocol = self.kafka_security_protocol
        sasl = bool(self.kafka_username or self.kafka_password.get_secret_value())
        tls = bool(self.kafka_ca or self.kafka_certificate or self.kafka_key)
        given = {"PENSTOCK_KAFKA_USERNAME": self.kafka_username}
        given["PENSTOCK_KAFKA_PASSWORD"] = self.kafka_password.get_secret_value()
        if protocol != "PLAINTEXT" and not self.kafka_bootstrap:
            raise ValueError(
                f"PENSTOCK_KAFKA_SECURITY_PROTOCOL={protocol} is of brokers elsewhere: set PENSTOCK_KAFKA_BOOTSTRAP"
            )
        if protocol.startswith("SASL_"):
            for name, value in given.items():
                if not value:
                    raise ValueError(f"PENSTOCK_KAFKA_SECURITY_PROTOCOL={protocol} needs {name}")
        elif sasl:
            raise ValueError(
                f"PENSTOCK_KAFKA_USERNAME or PENSTOCK_KAFKA_PASSWORD is set, and PENSTOCK_KAFKA_SECURITY_PROTOCOL is "
                f"{protocol}, which sends neither: set it to SASL_SSL"
            )
        if tls and not protocol.endswith("SSL"):
            raise ValueError(
                f"PENSTOCK_KAFKA_CA, _CERTIFICATE or _KEY is set, and PENSTOCK_KAFKA_SECURITY_PROTOCOL is {protocol}, "
                "which is without TLS: set it to SSL or SASL_SSL"
            )
        if self.control_ca and not self.control_url.get_secret_value():
            raise ValueError("PENSTOCK_CONTROL_CA is of a database elsewhere: set PENSTOCK_CONTROL_URL")
        if bool(self.kafka_certificate) != bool(self.kafka_key):
            raise ValueError("PENSTOCK_KAFKA_CERTIFICATE and PENSTOCK_KAFKA_KEY go together")
        if self.kafka_certificate:
            # Never asks a terminal for a password.
            password = self.kafka_key_password.get_secret_value()
            try:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_cert_chain(self.kafka_certificate, self.kafka_key, lambda: password)
            except (OSError, ValueError) as e:
                said = getattr(e, "strerror", None) or e
                raise ValueError(
                    f"PENSTOCK_KAFKA_CERTIFICATE and PENSTOCK_KAFKA_KEY (with PENSTOCK_KAFKA_KEY_PASSWORD) are no "
                    f"certificate and its key, as PEM files: {said}"
                ) from None
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_a_cluster(cls, given: Any) -> Any:
        """Of what is not given, what follows from `cluster`, and that from the home."""
        if not isinstance(given, dict):
            return given
        home = Path(given.get("home") or cls.model_fields["home"].default)
        marked = {"cluster": (home / CLUSTER_MARK).exists()}
        given = marked | given
        if str(given["cluster"]).strip().lower() in ("true", "1", "yes", "on", "t", "y"):
            port = given.get("spark_port") or cls.model_fields["spark_port"].default
            follows = {"spark_master": _own_master(port)}
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
    def own_master(self) -> str:
        """The embedded Spark master, whether it is used or not."""
        return _own_master(self.spark_port)

    @property
    def worker_python(self) -> str:
        """The Python that runs what Spark's workers are sent."""
        return ("" if self.spark_master.startswith("local") else self.executor_python) or sys.executable

    def placed(self, app: str) -> Placement:
        """What an app asks of a cluster."""
        own = self.placement.get(app, Placement())
        cores = own.cores or self.app_cores
        return Placement(
            cores=cores,
            executor_cores=min(cores, own.executor_cores or self.executor_cores),
            memory=own.memory or self.executor_memory,
        )

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


def _own_master(port: object) -> str:
    return f"spark://127.0.0.1:{port}"


def executors_here(master: str) -> bool:
    """Whether the executors of a Spark master run on this host: it is a local one, or listens on loopback only."""
    return master.startswith("local") or urlparse(master).hostname in ("127.0.0.1", "localhost", "::1")


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


def misspelt() -> dict[str, str]:
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
