"""Airflow on one machine: its four processes and the LocalExecutor, on loopback only."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import httpx

from penstock.devstack.servers.airflow_layout import USER, AirflowLayout
from penstock.devstack.servers.base import ManagedServer, ServerGroup, get, stop_together
from penstock.errors import HostError
from penstock.settings import settings


class AirflowServer(ManagedServer):
    """One of Airflow's processes."""

    start_timeout: ClassVar[float] = 180.0
    role: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layout: AirflowLayout) -> None:
        super().__init__(layout.home)
        self.layout = layout

    def prepare(self) -> None:
        self.layout.migrate()

    def environment(self) -> dict[str, str]:
        return self.layout.environment()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "airflow", self.role, *self.options]

    def ready(self) -> bool:
        return self.role.replace("-", "_") in healthy(self.layout.url)


class ApiServer(AirflowServer):
    name: str = "airflow-api"
    label: str = "Airflow's web and API server"
    role: ClassVar[str] = "api-server"
    variable: ClassVar[str] = "PENSTOCK_AIRFLOW_PORT"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": self.layout.port}

    def ready(self) -> bool:
        return "metadatabase" in healthy(self.layout.url)


class Scheduler(AirflowServer):
    name: str = "airflow-scheduler"
    label: str = "Airflow's scheduler"
    role: ClassVar[str] = "scheduler"
    # The API server reads the logs from the disk: no server for them, which would listen on every address.
    options: ClassVar[tuple[str, ...]] = ("--skip-serve-logs",)

    def start(self) -> bool:
        # A task that finds no API server gives up after some ten seconds, and its run fails.
        if not self.running():
            with contextlib.suppress(HostError):  # a server is down: the caller that waits for it gets the error
                ApiServer(self.layout).wait()
        return super().start()

    def prepare(self) -> None:
        super().prepare()
        self.layout.prune()


class DagProcessor(AirflowServer):
    name: str = "airflow-dag-processor"
    label: str = "Airflow's DAG processor"
    role: ClassVar[str] = "dag-processor"


class Triggerer(AirflowServer):
    name: str = "airflow-triggerer"
    label: str = "Airflow's triggerer"
    role: ClassVar[str] = "triggerer"
    options: ClassVar[tuple[str, ...]] = ("--skip-serve-logs",)


def healthy(url: str) -> set[str]:
    """Components that Airflow calls healthy; none while it does not answer."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        answer = get(f"{url}/api/v2/monitor/health", timeout=5)
        if answer.is_success:
            return {name for name, state in answer.json().items() if (state or {}).get("status") == "healthy"}
    return set()


class Airflow(ServerGroup):
    """All of Airflow.

    Each process is a server of its own, to be killed and started alone.

    Args:
        home: Folder of its data, logs and records.
    """

    def __init__(self, home: Path | None = None, port: int | None = None, project: Path | None = None) -> None:
        s = settings()
        self.layout = AirflowLayout(home or s.home, port or s.airflow_port, project or s.project)
        self.api = ApiServer(self.layout)
        self.scheduler = Scheduler(self.layout)
        self.dag_processor = DagProcessor(self.layout)
        self.triggerer = Triggerer(self.layout)

    @property
    def servers(self) -> tuple[AirflowServer, ...]:
        """In the order in which they start."""
        return self.api, self.dag_processor, self.triggerer, self.scheduler

    @property
    def url(self) -> str:
        return self.layout.url

    @property
    def user(self) -> str:
        return USER

    @property
    def password(self) -> str:
        """The generated password of the one user; empty before Airflow was first started."""
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(self.layout.password_file.read_text())[USER])
        return ""

    def token(self) -> str:
        """A bearer token for Airflow's REST API."""
        answer = httpx.post(f"{self.url}/auth/token", json={"username": USER, "password": self.password}, timeout=15)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def stop(self) -> bool:
        """Stop everything at once; True if something ran."""
        return stop_together(self.servers, timeout=10)

    def kill(self) -> None:
        """SIGKILL all of it."""
        for server in self.servers:
            server.kill()
