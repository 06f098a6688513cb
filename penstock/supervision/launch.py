"""Starts a driver detached: in a session of its own, its output in a log file, without the launcher's environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from penstock.errors import HostError
from penstock.host import files, session
from penstock.java import runtime
from penstock.java.properties import properties_text
from penstock.model.declaration import CAPTURES_APP, replaced_stream
from penstock.model.view import views_instance
from penstock.settings import LIBRARY, connections, executors_here, settings
from penstock.settings.sources import located_settings

# Enough to see what a crash loop did, few enough to read and to keep for ever.
LOGS_KEPT = 20
# Every driver has it on its command line, whatever it runs.
INCARNATION = "--incarnation"
DRIVER = LIBRARY / "penstock" / "engine" / "driver.py"


def driver_arguments(app: str, incarnation: str) -> list[str]:
    """The arguments of a driver."""
    return ["--app", app, INCARNATION, incarnation]


def python_command(app: str, incarnation: str) -> list[str] | None:
    """The command line of a driver that is no Spark application of its own: of captures, views and replacements, and
    of streams whose JVM is shared; None for others."""
    if app == CAPTURES_APP:
        module = "penstock.capture.driver"
    elif views_instance(app):
        module = "penstock.views.driver"
    elif replaced_stream(app):
        module = "penstock.engine.replacement.driver"
    else:
        module = "penstock.engine.driver" if settings().is_together(app) else ""
    return [sys.executable, "-m", module, *driver_arguments(app, incarnation)] if module else None


def has_streams(app: str) -> bool:
    """Whether an app is one of streams on Spark."""
    return not (app == CAPTURES_APP or views_instance(app) or replaced_stream(app))


def new_log(app: str) -> Path:
    """A log file for the next driver of an app; all but the last of older ones are removed."""
    folder = settings().logs
    with files.owner_only():
        folder.mkdir(parents=True, exist_ok=True)
    for old in logs_of(app)[: -LOGS_KEPT + 1]:
        old.unlink(missing_ok=True)
    return folder / f"driver-{app}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.log"


def logs_of(app: str) -> list[Path]:
    """The log files of an app's drivers, the oldest first; not those of an app whose name begins with its name."""
    digit = "[0-9]"
    return sorted(settings().logs.glob(f"driver-{app}-{8 * digit}T{12 * digit}.log"))


def write_spark_conf(app: str, conf: Mapping[str, str]) -> Path:
    """A file of an app's Spark settings, which may hold secrets: every user may read a command line."""
    path = settings().home / "run" / f"spark-{app}.conf"
    with files.owner_only():
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write_private(path, properties_text(conf))
    return path


def run_json_module(
    command: Sequence[str], timeout: float, project: Path | None = None, **settings: str
) -> dict[str, Any]:
    """Run a module in a driver's environment; the JSON of the last line it prints.

    Args:
        command: The module and its arguments.
        timeout: Seconds.
        project: As for `environment`.
        settings: Variables over those of the environment.

    Raises:
        subprocess.TimeoutExpired: It did not end in time.
        subprocess.CalledProcessError: It failed or gave no answer; `stderr` is what it wrote.
    """
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=environment(project) | connection_variables(project=project) | settings,
        capture_output=True, check=True, timeout=timeout,
    )  # fmt: skip
    try:
        answer: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as e:  # code of the project ended it
        error = done.stderr + b"\nit ended without an answer"
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, error) from e
    return answer


def environment(project: Path | None = None) -> dict[str, str]:
    """What a driver gets from its launcher: settings and paths, and nothing of Airflow's.

    Args:
        project: The folder of the code, a snapshot of the project; by default the project as it is on the disk.
    """
    s = settings()
    code = project or s.project
    env = {
        k: v
        for k, v in os.environ.items()
        # Captures find their databases by Airflow's connections.
        if k.startswith("AIRFLOW_CONN_") or not k.lstrip("_").startswith("AIRFLOW")
    }
    python = Path(sys.executable)
    library = [path for path in s.import_paths if path != str(s.project) or path == str(LIBRARY)]
    inherited = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    paths = dict.fromkeys([str(code), *_folders_within(code), *library, *(_moved(path, code) for path in inherited)])
    places = located_settings(type(s)) - {"project"}
    env.update(
        # spark-submit finds Spark by the environment that is first on the path.
        PATH=os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)]),
        PYTHONPATH=os.pathsep.join(paths),
        PYTHONUNBUFFERED="1",
        # A time without a zone is UTC to every function, whatever the host's clock shows.
        TZ="UTC",
        # Found by spark-submit too, but by starting Python twice.
        SPARK_HOME=env.get("SPARK_HOME") or _spark_home(),
        # A JVM that only puts the command line together.
        SPARK_LAUNCHER_OPTS=env.get("SPARK_LAUNCHER_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"),
        PYSPARK_PYTHON=s.worker_python,
        PYSPARK_DRIVER_PYTHON=str(python),
        JAVA_HOME=str(runtime.find().home),
        # As this process has them: in a released pyproject.toml they may be others, and relative to the release.
        **{f"PENSTOCK_{name.upper()}": str(getattr(s, name)) for name in places},
        PENSTOCK_PROJECT=str(code),
    )
    if executors_here(s.spark_master):
        env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return env


def connection_variables(app: str = "", project: Path | None = None) -> dict[str, str]:
    """What a process gets from its launcher of Airflow's Connections: those that settings name, for the app of captures
    those of its statements, and for streams those with the keys of masks. They hold secrets: never log them.

    Args:
        app: The app of a driver; empty for a process that may read any stream.
        project: As for `environment`.
    """
    # Who launches nothing needs no declarations.
    from penstock.catalog import capture_connections, mask_connections

    conn_ids, code = set(settings().connection_ids.values()), project or settings().project
    if app == CAPTURES_APP:
        conn_ids |= capture_connections(code)
    elif views_instance(app) is None:
        conn_ids |= mask_connections(code)
    return connections.variables(conn_ids)


def _folders_within(code: Path) -> Iterator[str]:
    """Folders of a snapshot that are on Python's path in the project, as `src` is of a package that was installed
    editable."""
    for path in sys.path:
        if (moved := _moved(path, code)) not in (path, str(code)):
            yield moved


def _moved(path: str, code: Path) -> str:
    """A folder of the project as it is in a snapshot; one that the snapshot does not have stays as it is."""
    project = settings().project
    # A project that is reached by a link is on Python's path by its real name too, as a working directory always is.
    for folder, top in ((Path(path), project), (Path(path).resolve(), project.resolve())):
        with suppress(ValueError):
            moved = code / folder.relative_to(top)
            return str(moved) if moved.is_dir() else path
    return path


def _spark_home() -> str:
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise HostError("pyspark is not installed", hint="install the environment again")
    return spec.submodule_search_locations[0]


def start(command: Sequence[str], *, log: Path, env: dict[str, str] | None = None) -> tuple[int, float]:
    """Start a command detached; its pid and its start in seconds since boot.

    Raises:
        HostError: It cannot be started, or ended at once.
    """
    env = environment() if env is None else env
    program = shutil.which(command[0], path=env.get("PATH"))
    if program is None:
        raise HostError("no such program", got=command[0], hint="install the environment again, or mend its PATH")
    work = settings().home
    files.make_private(work)
    try:
        with files.owner_only():
            pid, started = session.start_detached([program, *command[1:]], log=log, env=env, cwd=work)
    except OSError as e:
        raise HostError(f"{command[0]} cannot be started", got=e, hint="see the message and its file") from e
    if session.started(pid) is None:
        raise HostError(f"{command[0]} ended at once", got=f"log {log}", hint="read the log")
    return pid, started
