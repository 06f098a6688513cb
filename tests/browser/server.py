"""A real Airflow api-server with the project's plugins, in a temporary AIRFLOW_HOME."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from penstock.host.ports import free_port
from penstock.settings import PROJECT

PASSWORDS = {"olga": "gate-of-the-mill", "otto": "starts-and-stops", "vera": "looks-only"}
TEAM = "releases"
# Roles and teams: only members of the team may trigger the DAGs of its bundle.
ROLES = {"olga": f"user:{TEAM}", "otto": "user", "vera": "viewer"}
# Kinds of DAGs by bundle.
BUNDLES = {"operations": ["operate"], TEAM: ["release", "replace", "rebuild"]}
TIMEOUT = 120.0
# Commands of Airflow in one process, as each imports it for seconds.
COMMANDS = """
import json, sys
from airflow.cli.cli_parser import get_parser
for words in json.loads(sys.argv[1]):
    arguments = get_parser().parse_args(words)
    arguments.func(arguments)
"""
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


def simple_users(home: Path) -> dict[str, str]:
    """Settings of Airflow for its simple auth manager with the users above."""
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    return {
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{u}:{r}" for u, r in ROLES.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }


def dag_bundles(home: Path, team: str | None) -> str:
    """The DAGs of BUNDLES in folders of a home, as the setting of Airflow. team: of the bundle of releases."""
    bundles = []
    for name, kinds in BUNDLES.items():
        folder = home / "dags" / name
        folder.mkdir(parents=True)
        text = f"from penstock.airflow.dags import declare_dags\n\nglobals().update(declare_dags(*{kinds}))\n"
        (folder / f"{name}.py").write_text(text)
        bundles.append(
            {
                "name": name,
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "kwargs": {"path": str(folder)},
                "team_name": team if name == TEAM else None,
            }
        )
    return json.dumps(bundles)


@contextmanager
def api_server(
    home: Path,
    control_url: str,
    settings: Mapping[str, str],
    *,
    auth: Mapping[str, str] | None = None,
    commands: Sequence[Sequence[str]] = (),
    python: str = sys.executable,
) -> Iterator[Server]:
    """Start Airflow's api-server on a free port; end its whole process group afterwards.

    Args:
        home: Of Airflow.
        control_url: Of the control database.
        settings: Of Penstock.
        auth: Settings of Airflow for another auth manager than the simple one.
        commands: Of Airflow, run once its DAGs are known.
        python: Of the environment that Airflow runs in.
    """
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    project = shutil.copytree(DECLARED, home / "project", ignore=shutil.ignore_patterns("__pycache__"))
    for name in PANEL:
        (project / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, project / name)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PENSTOCK_"))}
    env |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": dag_bundles(home, None if auth else TEAM),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "PENSTOCK_CONTROL_URL": control_url,
        "PENSTOCK_PROJECT": str(project),
        "PENSTOCK_HOME": str(home / "penstock"),
        "PYTHONPATH": str(PROJECT),
        **settings,
        **(auth or simple_users(home)),
    }
    teams = [] if auth else [["teams", "create", TEAM]]
    first = [["db", "migrate"], *teams, ["dags", "reserialize"], *commands]
    log = home / "api-server.log"
    with log.open("w") as out:
        make = [python, "-c", COMMANDS, json.dumps(first)]
        subprocess.run(make, env=env, stdout=out, stderr=out, check=True, timeout=TIMEOUT)
        process = subprocess.Popen(
            [python, "-m", "airflow", "api-server", "--host", "127.0.0.1", "--port", str(port)],
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
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{server.url}/api/v2/version", timeout=2).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise RuntimeError(f"the api-server did not come up:\n{log.read_text()[-3000:]}")


def same_origin(client: httpx.Client) -> dict[str, str]:
    """Headers of a request that the page itself sends."""
    return {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
