"""Spark's standalone master and its workers on this machine, of the installed pyspark; on loopback only."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from penstock.devstack.servers.base import ManagedServer, ServerGroup, check_passes, get
from penstock.engine.session import LOG4J_CONFIG
from penstock.engine.spark_security import security_conf
from penstock.host import files, ports
from penstock.java.properties import properties_text
from penstock.settings import settings
from penstock.supervision import launch

OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={LOG4J_CONFIG}",
)
CONF = {
    "spark.master.rest.enabled": "false",
    # Its web pages have no authentication.
    "spark.ui.killEnabled": "false",
    "spark.master.ui.decommission.allow.mode": "DENY",
    # A worker that is silent for so many seconds, twice as many at worst, is given up, and its apps get executors
    # elsewhere. Before their drivers miss those executors: else the new ones would be started where the old ones hang.
    "spark.worker.timeout": "10",
    # Else a worker ends by itself when its master has been away for a quarter of an hour: then it looks each minute.
    "spark.worker.maxRegistrationRetries": str(365 * 24 * 60),
    # Ten executors that end would be the end of a driver, though its next one would find the same.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.worker.cleanup.enabled": "true",
    "spark.worker.cleanup.appDataTtl": str(2 * 24 * 3600),
    "spark.executor.logs.rolling.strategy": "size",
    "spark.executor.logs.rolling.maxSize": str(10 * 1024 * 1024),
    "spark.executor.logs.rolling.maxRetainedFiles": "2",
}


class SparkServer(ManagedServer):
    """A process of the cluster's own."""

    role: str
    variable = "PENSTOCK_SPARK_PORT"

    def __init__(self, home: Path | None = None, port: int | None = None) -> None:
        """port: the master's."""
        super().__init__(home or settings().home)
        self.master_port = port or settings().spark_port
        self.folder = self.home / "spark"

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.master_port}"

    @property
    def page(self) -> str:
        """The master's page."""
        return f"http://127.0.0.1:{self.master_port + 1}"

    def conf(self) -> dict[str, str]:
        return {**CONF, **security_conf(self.url, self.home)}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files.write_private(self._properties, properties_text(self.conf()))

    @property
    def _properties(self) -> Path:
        return self.folder / f"{self.name}.conf"

    def environment(self) -> dict[str, str]:
        return {
            **launch.environment(),
            "PENSTOCK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": shlex.join(OPTIONS),
        }

    def command(self) -> list[str]:
        port, page = self.ports.values()
        return [
            str(Path(self.environment()["SPARK_HOME"]) / "bin" / "spark-class"), f"org.apache.spark.deploy.{self.role}",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page),
            "--properties-file", str(self._properties),
        ]  # fmt: skip


class Master(SparkServer):
    """The master; it knows its workers and apps again after a crash. Its page takes the next port."""

    name = "spark-master"
    label = "the Spark master"
    role = "master.Master"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"spark": self.master_port, "page": self.master_port + 1}

    @property
    def _recovery_folder(self) -> Path:
        return self.folder / "known"

    def conf(self) -> dict[str, str]:
        recovery = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self._recovery_folder),
        }
        return super().conf() | recovery

    def ready(self) -> bool:
        return ports.listens(self.master_port) and state(self.page).get("status") == "ALIVE"

    def forget(self) -> None:
        """Delete its recovery state: applications that ended with it would be waited for."""
        shutil.rmtree(self._recovery_folder, ignore_errors=True)


class Worker(SparkServer):
    """A worker and the executors that it starts, which end with it. number: of it, the first is 1."""

    label = "Spark worker"
    role = "worker.Worker"

    def __init__(
        self, home: Path | None = None, port: int | None = None, number: int = 1, *, cores: int = 0, memory: str = ""
    ) -> None:
        super().__init__(home, port)
        self.number = number
        self.name = f"spark-worker-{number}"
        self.label = f"Spark worker {number}"
        self.cores, self.memory = cores or settings().worker_cores, memory or settings().worker_memory

    @property
    def ports(self) -> Mapping[str, int]:
        first = self.master_port + 2 * self.number
        return {"spark": first, "page": first + 1}

    @property
    def work(self) -> Path:
        """Where each executor's log is: `<application>/<executor>/stderr`."""
        return self.folder / f"work-{self.number}"

    @property
    def scratch(self) -> Path:
        """Where executors keep their state and what they shuffle."""
        return self.folder / f"tmp-{self.number}"

    def prepare(self) -> None:
        super().prepare()
        # What executors that were killed have left.
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    def environment(self) -> dict[str, str]:
        return super().environment() | {"SPARK_LOCAL_DIRS": str(self.scratch)}

    def command(self) -> list[str]:
        gives = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.work)]
        return [*super().command(), *gives, self.url]

    def ready(self) -> bool:
        own_port = self.ports["spark"]
        return any(w["port"] == own_port and w["state"] == "ALIVE" for w in state(self.page).get("workers", ()))


class SparkCluster(ServerGroup):
    """A master and its workers. Each is a server of its own, to be killed and started alone.

    port: the master's; its page takes the next, and each worker two more.
    """

    def __init__(
        self,
        home: Path | None = None,
        port: int | None = None,
        *,
        workers: int | None = None,
        cores: int = 0,
        memory: str = "",
    ) -> None:
        self.master = Master(home, port)
        numbers = range(1, (workers or settings().workers) + 1)
        self.workers = [Worker(home, port, n, cores=cores, memory=memory) for n in numbers]

    @property
    def servers(self) -> list[SparkServer]:
        """In the order in which they start."""
        return [self.master, *self.workers]

    @property
    def url(self) -> str:
        return self.master.url

    def stop(self) -> bool:
        ran = super().stop()
        self.master.forget()
        return ran


def state(page: str) -> dict[str, Any]:
    """The state of the master with this web page, its workers and apps; empty while it does not answer."""
    answer: dict[str, Any] = {}

    def ask() -> bool:
        answer.update(get(f"{page}/json/", timeout=5).json())
        return True

    check_passes(ask, httpx.HTTPError, ValueError)
    return answer
