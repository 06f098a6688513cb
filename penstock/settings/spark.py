"""Settings of Spark: master, executors, drivers, checkpoints."""

import sys
from typing import Annotated, Literal
from urllib.parse import urlparse

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from penstock.settings.types import MEMORY, PATH, Absolute, absolute


def _checkpoint_root(location: str) -> str:
    url = urlparse(location)
    if url.scheme in ("s3", "s3n"):
        raise ValueError("use s3a:// for an object store")
    if url.scheme == "s3a" and not url.netloc:
        raise ValueError("name a bucket: s3a://bucket/path")
    if url.scheme in ("", "file"):
        absolute(url.netloc + url.path)
    return location


class ExecutorResources(BaseModel):
    """The resources that one app requests of a cluster. A field that is None has the value of all apps.

    Attributes:
        cores: Cores of all executors together.
        executor_cores: Cores of one executor.
        memory: JVM heap of one executor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int | None = Field(None, ge=1)
    executor_cores: int | None = Field(None, ge=1)
    memory: str | None = Field(None, pattern=MEMORY)


def local_master_url(port: object) -> str:
    """URL of the embedded Spark master."""
    return f"spark://127.0.0.1:{port}"


def executors_here(master: str) -> bool:
    """Whether the executors of a Spark master run on this host: it is local, or listens on loopback only."""
    return master.startswith("local") or urlparse(master).hostname in ("127.0.0.1", "localhost", "::1")


class SparkSettings(BaseModel):
    """Spark's master, executors, drivers and checkpoints."""

    checkpoints: Annotated[str, AfterValidator(_checkpoint_root), PATH] = Field(
        "",
        description="folder of checkpoints, or `s3a://bucket/path` in the object store; empty: `checkpoints` in the "
        "home",
    )
    spark_master: str = Field(
        "local[2]", description="Spark master; the embedded one by default if there is an embedded cluster"
    )
    deploy: Literal["client", "cluster"] = Field(
        "client", description="where drivers of streams run: `client`, beside their supervisor; `cluster`, on workers"
    )
    spark_secret: SecretStr = Field(
        SecretStr(""),
        description="shared secret of Spark's processes on several hosts; empty: the one in `spark.secret` of the home",
    )
    spark_port: int = Field(
        17077,
        ge=1,
        le=65500,
        description="port of the embedded Spark master; its web page uses the next one, each worker two more",
    )
    workers: int = Field(2, ge=1, le=16, description="number of embedded Spark workers")
    worker_cores: int = Field(
        8, ge=1, description="cores that each embedded worker offers; they may be more than the machine has"
    )
    worker_memory: str = Field("6g", pattern=MEMORY, description="memory that each embedded worker offers")
    app_cores: int = Field(2, ge=1, description="cores of all executors of one app, unless the master is local")
    executor_cores: int = Field(1, ge=1, description="cores of one executor")
    executor_memory: str = Field("512m", pattern=MEMORY, description="JVM heap of one executor")
    executor_python: str = Field("", description="path of Python on executors; empty: the path of the driver's")
    executor_image: str = Field(
        "", description="container image of executors, required if the master is Kubernetes (`k8s://`)"
    )
    executor_template: Absolute = Field(
        "", description="file of the pod template of executors in Kubernetes; empty: none"
    )
    kubernetes_namespace: str = Field("default", description="namespace of executors in Kubernetes")
    driver_host: str = Field(
        "", description="address at which executors on other hosts reach this driver; empty: Spark decides"
    )
    placement: dict[str, ExecutorResources] = Field(
        {},
        description='cores and memory of single apps, as JSON: `{"metrics": {"cores": 4, "executor_cores": 2, '
        '"memory": "1g"}}`',
    )
    driver_memory: str = Field("768m", description="JVM heap of one driver")
    together: str = Field(
        "",
        description="apps whose drivers share one JVM, if Spark's master is local: their names, or `all`; empty: each "
        "driver has its own",
    )
    together_memory: str = Field("1g", pattern=MEMORY, description="heap of the JVM that apps and previews share")
    warm_session: bool = Field(
        True, description="keep a Spark session ready for previews on the embedded platform, 0.8 GiB of memory"
    )
    java_options: str = Field("", description="options of a driver's JVM, which replace the defaults")
    spark_conf: dict[str, str] = Field(
        {}, description="Spark settings of drivers, which override single defaults, as JSON"
    )

    @property
    def own_master(self) -> str:
        """URL of the embedded Spark master, even if another one is configured."""
        return local_master_url(self.spark_port)

    @property
    def worker_python(self) -> str:
        """Path of the Python that runs Python functions on executors."""
        return ("" if self.spark_master.startswith("local") else self.executor_python) or sys.executable

    @property
    def is_any_together(self) -> bool:
        """Whether drivers share a JVM."""
        return bool(self.together.strip()) and self.spark_master.startswith("local") and self.deploy == "client"

    def is_together(self, app: str) -> bool:
        """Whether the driver of an app of streams shares its JVM with others."""
        return self.is_any_together and not {"all", app}.isdisjoint(self.together.replace(",", " ").split())

    def executor_resources(self, app: str) -> ExecutorResources:
        """The resources that an app requests of a cluster."""
        own = self.placement.get(app, ExecutorResources())
        cores = own.cores or self.app_cores
        return ExecutorResources(
            cores=cores,
            executor_cores=min(cores, own.executor_cores or self.executor_cores),
            memory=own.memory or self.executor_memory,
        )
