"""The folders, settings and SQLite metadata of Airflow on one machine."""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import secrets
import shutil
import sqlite3
import sys
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import write_private
from penstock.java import runtime as java
from penstock.settings import LIBRARY, settings

USER = "admin"
# Airflow never deletes runs, and the platform has some hundred a day.
KEEP_DAYS = 14
SECRETS = (("core", "fernet_key"), ("api", "secret_key"), ("api_auth", "jwt_secret"))


class AirflowLayout:
    """The folders and settings of Airflow.

    project: holds jobs/ and sql/; its dags/ are used if it has any, otherwise the example DAGs of Penstock.
    """

    def __init__(self, home: Path, port: int, project: Path) -> None:
        self.home, self.port, self.project = home, port, project
        self.folder = home / "airflow"
        self.password_file = self.folder / "passwords.json"
        self.database = self.folder / "airflow.db"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def dags(self) -> Path:
        folder = self.project / "dags"
        return folder if folder.is_dir() else LIBRARY / "penstock" / "example_dags"

    @property
    def plugins(self) -> Path:
        """The project's plugins; without any, those of a checkout, for an environment in which it is not installed."""
        folder = self.project / "plugins"
        return folder if folder.is_dir() else LIBRARY / "plugins"

    def config(self) -> dict[str, dict[str, str]]:
        """Airflow's settings, where they differ from its own defaults."""
        logs = self.home / "logs" / "airflow"
        return {
            "core": {
                "dags_folder": str(self.dags),
                "plugins_folder": str(self.plugins),
                "executor": "LocalExecutor",
                "parallelism": "8",
                "load_examples": "False",
                "dags_are_paused_at_creation": "False",
                "simple_auth_manager_users": f"{USER}:admin",
                "simple_auth_manager_passwords_file": str(self.password_file),
                "execution_api_server_url": f"{self.url}/execution/",
            },
            # SQLite has one writer at a time. Who waits longer than this for another gives up, and the scheduler and
            # the triggerer end by that; by itself it is five seconds, which a busy machine exceeds.
            "database": {"sql_alchemy_conn": f"sqlite:///{self.database}?timeout=60"},
            "api": {
                "host": "127.0.0.1",
                "port": str(self.port),
                "base_url": self.url,
                "workers": "1",
                "expose_config": "False",
            },
            "api_auth": {},
            "logging": {
                "base_log_folder": str(logs),
                "dag_processor_child_process_log_directory": str(logs / "dag_processor"),
                "colored_console_log": "False",
                # Airflow sets these itself, whatever the umask of its processes.
                "file_task_handler_new_folder_permissions": "0o700",
                "file_task_handler_new_file_permissions": "0o600",
            },
            "scheduler": {
                # A task whose supervisor died is noticed after a minute, not after five.
                "task_instance_heartbeat_timeout": "60",
                "orphaned_tasks_check_interval": "60",
            },
            # By itself five seconds, which a busy machine exceeds: the task then fails before it has begun.
            "workers": {"execution_api_timeout": "30"},
            # The triggers of a triggerer that died are taken over once its beat is this old.
            "triggerer": {"triggerer_health_check_threshold": "15"},
            "dag_processor": {
                # A new DAG file shows within half a minute, a new declaration within a minute.
                "refresh_interval": "30",
                "min_file_process_interval": "60",
                "parsing_processes": "1",
                "print_stats_interval": "0",
            },
        }

    def write(self) -> None:
        """Write `airflow.cfg` and the password of its user; secrets are generated once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "airflow.cfg"
        file = configparser.ConfigParser(interpolation=None)
        file.read(path)
        values = {option: file.get(*option, fallback=_secret()) for option in SECRETS}
        file.clear()
        file.read_dict(self.config())
        for (section, option), value in values.items():
            file.set(section, option, value)
        text = io.StringIO()
        file.write(text)
        write_private(path, text.getvalue())
        if not self.password_file.exists():
            # A password that Airflow makes it also writes into its log.
            write_private(self.password_file, json.dumps({USER: secrets.token_urlsafe(12)}))

    def environment(self) -> dict[str, str]:
        """Variables of all Airflow processes."""
        python = Path(sys.executable)
        runtime = java.find()
        path = [str(python.parent), str(runtime.home / "bin"), os.environ.get("PATH", os.defpath)]
        paths = dict.fromkeys([str(self.project), *settings().python_path.split(os.pathsep)])
        return {
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": settings().spark_master}),
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYSPARK_PYTHON": settings().worker_python,
            "PYSPARK_DRIVER_PYTHON": str(python),
            "JAVA_HOME": str(runtime.home),
            "PENSTOCK_HOME": str(self.home),
            "PENSTOCK_PROJECT": str(self.project),
            "PENSTOCK_AIRFLOW_PORT": str(self.port),
        }

    def migrate(self) -> None:
        """Create the metadata database, or migrate it to the installed version."""
        self.write()
        mark = self.folder / f"migrated-{version('apache-airflow')}"
        if mark.exists() and self.database.exists():
            return
        # The first time it is created under another name, because an incomplete database could not be repaired.
        first = not self.database.exists()
        target = self.folder / "airflow.db.part" if first else self.database
        if first:
            target.unlink(missing_ok=True)
        env = {**self.environment(), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{target}"}
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = process.run_captured(command, env=env, cwd=self.folder)
        if done.returncode:
            raise HostError("Airflow's metadata database could not be made", got=(done.stdout + done.stderr)[-1500:])
        if first:
            target.rename(self.database)
        mark.touch()

    def prune(self, days: int = KEEP_DAYS) -> bool:
        """Delete runs that began more than `days` ago, and their logs; True if there were any.

        Only while no scheduler runs: SQLite has one writer at a time.
        """
        if not self.database.exists():
            return False
        before = datetime.now(UTC) - timedelta(days=days)
        with contextlib.closing(sqlite3.connect(self.database)) as c:
            [oldest] = c.execute("select min(start_date) from dag_run where end_date is not null").fetchone()
        if oldest is None or oldest[:10] >= f"{before:%Y-%m-%d}":
            return False
        command = [sys.executable, "-m", "airflow", "db", "clean", "--clean-before-timestamp", before.isoformat()]
        process.run_captured([*command, "--skip-archive", "--yes"], env=self.environment(), cwd=self.folder)
        for run in (self.home / "logs" / "airflow").glob("dag_id=*/run_id=*"):
            if run.stat().st_mtime < before.timestamp():
                shutil.rmtree(run, ignore_errors=True)
        return True


def _secret() -> str:
    return urlsafe_b64encode(secrets.token_bytes(32)).decode()
