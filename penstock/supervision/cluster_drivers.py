"""Drivers that a standalone cluster runs: they are started, looked up and ended through its master, from any host.

A separate process talks to the master (`penstock.engine.jvm.standalone_master`). So Spark is not loaded here, and a
master that hangs does not block the caller.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlparse

from penstock.control import DriverRow
from penstock.errors import ClusterError, SettingError
from penstock.settings import executors_here
from penstock.supervision import launch

# A JVM must start for the request; a driver that is killed has ten seconds to end.
TIMEOUT = 60.0
# How long an answer of the master is used.
LOOK_EVERY = 5.0
# Variables that a driver gets on its worker: settings, and paths, which are the same on all hosts. The rest is
# of the worker's host.
PASSED_ON = re.compile(
    r"(PENSTOCK_|AIRFLOW_CONN_|AWS_|OPENLINEAGE_|OTEL_|PYSPARK_)\w+|PATH|PYTHONPATH|PYTHONUNBUFFERED|TZ|JAVA_HOME|SSL_CERT_FILE"
)
# Of the supervisor's own host.
NOT_PASSED_ON = ("PENSTOCK_DRIVER_HOST", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")
# Its worker saw it end, so no process is left. The drivers of a lost worker have ERROR too.
ENDED = ("FINISHED", "FAILED", "KILLED")
LOST = ("ERROR", "MISSING")


@dataclass(frozen=True)
class ClusterSubmission:
    """A driver of an app as a cluster starts it.

    Attributes:
        conf: Its Spark settings, with those of its executors.
    """

    app: str
    incarnation: str
    master: str
    conf: Mapping[str, str]

    def submit(self, log: Path, project: Path | None = None) -> str:
        """Submit the driver; returns the master's id of it. SettingError, ClusterError.

        project: as for `launch.environment`.
        """
        if not self.master.startswith("spark://"):
            raise SettingError(
                "PENSTOCK_DEPLOY=cluster is for a standalone master",
                got=self.master,
                hint="set PENSTOCK_SPARK_MASTER and the Spark connection to spark://HOST:PORT, or "
                "PENSTOCK_DEPLOY=client",
            )
        arguments = [*launch.driver_arguments(self.app, self.incarnation), "--cluster-log", str(log)]
        jars = [urlparse(jar).path for jar in self.conf.get("spark.jars", "").split(",") if jar]
        options = shlex.split(self.conf.get("spark.driver.extraJavaOptions", ""))
        # For the connection to its worker, which passes the secret in the environment.
        auth_options = [
            f"-D{k}={v}" for k, v in self.conf.items() if k.startswith(("spark.auth", "spark.network.crypto."))
        ]
        answer = _ask(
            "submit",
            self.master,
            file=str(launch.DRIVER),
            arguments=arguments,
            environment=self.environment(project),
            class_path=list(filter(None, [*self.conf.get("spark.driver.extraClassPath", "").split(os.pathsep), *jars])),
            # The JVM's own messages go to the same log.
            options=[*options, "-XX:+DisplayVMOutputToStderr", *(o for o in auth_options if "secret" not in o)],
            memory=_mebibytes(self.conf["spark.driver.memory"]),
            cores=int(self.conf.get("spark.driver.cores", "1")),
        )
        return str(answer["id"])

    def environment(self, project: Path | None = None) -> dict[str, str]:
        """Variables that the driver gets in addition to those of its worker."""
        own = launch.environment(project) | launch.connection_variables(self.app, project)
        variables = {k: v for k, v in own.items() if PASSED_ON.fullmatch(k) and k not in NOT_PASSED_ON}
        variables |= {"PENSTOCK_DEPLOY": "cluster", "PENSTOCK_SPARK_MASTER": self.master}
        return variables | ({"SPARK_LOCAL_IP": "127.0.0.1"} if executors_here(self.master) else {})


@dataclass(frozen=True)
class ClusterDriverState:
    """The state of a driver, as its master reports it.

    Attributes:
        state: As Spark names it; MISSING if the master does not know the id, empty if the master does not answer.
        why: Why the master could not be asked.
        free: What workers have left, if the driver waits for one.
    """

    state: str
    why: str = ""
    free: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def lost(self) -> bool:
        """Whether it is unknown if any process is left."""
        return self.state in LOST

    def wait_reason(self, d: DriverRow) -> str | None:
        """What it waits for, if it has no place yet."""
        if self.state != "SUBMITTED":
            return None
        return f"waits for a worker with room for its driver; {d.master} has {self.free}"


_answers: dict[str, tuple[float, ClusterDriverState]] = {}
_being_asked: set[str] = set()
_lock, _one_at_a_time = Lock(), Lock()


def driver_state(d: DriverRow, age: float = LOOK_EVERY, *, wait: bool = True) -> ClusterDriverState:
    """The state of a driver as its master reports it, at most `age` seconds old.

    Args:
        wait: Whether to wait for the answer. Else a thread asks and the last answer counts; its state is empty before
            the first.
    """
    key = f"{d.submission} {d.master}"
    answered_at, state = _answers.get(key, (0.0, ClusterDriverState("", "its master was not asked yet")))
    if answered_at and time.monotonic() - answered_at < age:
        return state
    if wait:
        return _look(d, age)
    with _lock:
        if key not in _being_asked:
            _being_asked.add(key)
            Thread(target=_look_in_background, args=(d, age), name=f"look-{d.submission}", daemon=True).start()
    return state


def _look_in_background(d: DriverRow, age: float) -> None:
    try:
        _look(d, age)
    finally:
        with _lock:
            _being_asked.discard(f"{d.submission} {d.master}")


def _look(d: DriverRow, age: float) -> ClusterDriverState:
    # Each question starts a JVM.
    with _one_at_a_time:
        answered_at, state = _answers.get(f"{d.submission} {d.master}", (0.0, ClusterDriverState("")))
        if answered_at and time.monotonic() - answered_at < age:
            return state
        return _update(d, "look")


def kill(d: DriverRow) -> ClusterDriverState:
    """Let a worker kill a driver; returns its state then, which may be running."""
    return _update(d, "kill")


def _update(d: DriverRow, command: str) -> ClusterDriverState:
    try:
        answer = _ask(command, d.master or "", id=d.submission)
        state = ClusterDriverState(answer["state"], answer["why"], answer["free"])
    except ClusterError as e:
        state = ClusterDriverState("", str(e))
    _answers[f"{d.submission} {d.master}"] = (time.monotonic(), state)
    return state


def _ask(command: str, master: str, **more: Any) -> dict[str, Any]:
    what = f"the Spark master {master} did not {command} a driver"
    hint = "check that it runs and has the same PENSTOCK_SPARK_SECRET"
    request = json.dumps({"do": command, "master": master, **more})
    module = [sys.executable, "-m", "penstock.engine.jvm.standalone_master"]
    try:
        done = subprocess.run(
            module,
            input=request,
            env=launch.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
        )
    except subprocess.TimeoutExpired as e:
        raise ClusterError(what, got=f"no answer within {TIMEOUT:g} s", hint=hint) from e
    except subprocess.CalledProcessError as e:
        raise ClusterError(what, got=str(e.stderr).strip()[-1000:], hint=hint) from e
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise ClusterError(what, got=answer["error"], hint=hint)
    return answer


def _mebibytes(memory: str) -> int:
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if not match:
        raise SettingError("PENSTOCK_DRIVER_MEMORY is not a heap size", got=memory, hint="write it as 768m or 2g")
    return max(1, (int(match[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[match[2]]) >> 20)
