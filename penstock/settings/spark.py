"""Settings: the master, executors and drivers, and their checkpoints."""

import sys
from typing import Annotated, Literal
from urllib.parse import urlparse

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from penstock.settings.types import MEMORY, Absolute


def _checkpoint_root(given: str) -> str:
    url = urlparse(given)
    if url.scheme in ("s3", "s3n"):
        raise ValueError("write s3a:// for an object store")
    if url.scheme == "s3a" and not url.netloc:
        raise ValueError("name a bucket: s3a://bucket/path")
    return given


class ExecutorResources(BaseModel):
    """What one app asks of a cluster. What is not given is as for all apps.

    Attributes:
        cores: Of all its executors.
        executor_cores: Of one executor.
        memory: JVM heap of one executor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int | None = Field(None, ge=1)
    executor_cores: int | None = Field(None, ge=1)
    memory: str | None = Field(None, pattern=MEMORY)


def local_master_url(port: object) -> str:
    """The embedded Spark master."""
    return f"spark://127.0.0.1:{port}"


def executors_here(master: str) -> bool:
    """Whether the executors of a Spark master run on this host: it is a local one, or listens on loopback only."""
    return master.startswith("local") or urlparse(master).hostname in ("127.0.0.1", "localhost", "::1")


class SparkSettings(BaseModel):
    """The master, executors and drivers, and their checkpoints."""

    checkpoints: Annotated[str, AfterValidator(_checkpoint_root)] = Field(
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
    placement: dict[str, ExecutorResources] = Field(
        {}, description="cores and memory of single apps, instead of the three above, as JSON"
    )
    driver_memory: str = Field("768m", description="JVM heap of one driver")
    java_options: str = Field("", description="options of a driver's JVM, instead of those that were measured best")
    spark_conf: dict[str, str] = Field({}, description="Spark settings over those that were measured best, as JSON")

    @property
    def own_master(self) -> str:
        """The embedded Spark master, whether it is used or not."""
        return local_master_url(self.spark_port)

    @property
    def worker_python(self) -> str:
        """The Python that runs what Spark's workers are sent."""
        return ("" if self.spark_master.startswith("local") else self.executor_python) or sys.executable

    def executor_resources(self, app: str) -> ExecutorResources:
        """What an app asks of a cluster."""
        own = self.placement.get(app, ExecutorResources())
        cores = own.cores or self.app_cores
        return ExecutorResources(
            cores=cores,
            executor_cores=min(cores, own.executor_cores or self.executor_cores),
            memory=own.memory or self.executor_memory,
        )
