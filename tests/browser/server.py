"""A real Airflow api-server with the project's plugins, in a temporary AIRFLOW_HOME."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from penstock.settings import PROJECT

PASSWORDS = {"olga": "gate-of-the-mill", "vera": "looks-only"}
ROLES = {"olga": "user", "vera": "viewer"}
PATIENCE = 120.0
DECLARED = Path(__file__).parent / "project"
PANEL = ("jobs/captures.py", "jobs/agents/__init__.py", "jobs/agents/views.py", "jobs/agents/panel.py")


@dataclass(frozen=True)
class Server:
    """project: a copy of DECLARED with the panel of the agents, which its catalog shows."""

    url: str
    project: Path

    def token(self, user: str) -> str:
        """A JWT of a user, as `POST /auth/token` gives it."""
        answer = httpx.post(f"{self.url}/auth/token", json={"username": user, "password": PASSWORDS[user]}, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["access_token"])


@contextmanager
def api_server(home: Path, control_url: str, settings: Mapping[str, str]) -> Iterator[Server]:
    """Start Airflow's api-server on a free port; end its whole process group afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    passwords = home / "passwords.json"
    home.mkdir(parents=True, exist_ok=True)
    project = shutil.copytree(DECLARED, home / "project", ignore=shutil.ignore_patterns("__pycache__"))
    for name in PANEL:
        (project / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, project / name)
    passwords.write_text(json.dumps(PASSWORDS))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PENSTOCK_"))}
    env |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{u}:{r}" for u, r in ROLES.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "PENSTOCK_CONTROL_URL": control_url,
        "PENSTOCK_PROJECT": str(project),
        "PENSTOCK_HOME": str(home / "penstock"),
        "PYTHONPATH": str(PROJECT),
        **settings,
    }
    airflow = [sys.executable, "-m", "airflow"]
    log = home / "api-server.log"
    with log.open("w") as out:
        subprocess.run([*airflow, "db", "migrate"], env=env, stdout=out, stderr=out, check=True, timeout=PATIENCE)
        process = subprocess.Popen(
            [*airflow, "api-server", "--host", "127.0.0.1", "--port", str(port)],
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", project)
            _wait(server, process, log)
            yield server
        finally:
            # Its workers are processes of their own: a signal to the parent alone would orphan them.
            for stop in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, stop)
                    process.wait(15)
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue
            process.wait(5)


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{server.url}/api/v2/version", timeout=2).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise RuntimeError(f"the api-server did not come up:\n{log.read_text()[-3000:]}")
