"""Drivers that a standalone cluster runs: started, looked for and ended by its master, from any host.

What speaks with the master is a process of its own (`penstock.engine.jvm.standalone_master`): here no Spark is
loaded, and a master that hangs hangs nobody.
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

# A JVM must start to ask; a driver that is killed gets ten seconds to end by itself.
TIMEOUT = 60.0
# How long what the master said is used again.
LOOK_EVERY = 5.0
# What a driver is given on its worker: settings, and where everything lies, which is the same on all hosts. The rest is
# of the worker's host.
KEPT = re.compile(
    r"(PENSTOCK_|AIRFLOW_CONN_|AWS_|PYSPARK_)\w+|PATH|PYTHONPATH|PYTHONUNBUFFERED|TZ|JAVA_HOME|SSL_CERT_FILE"
)
# Of the supervisor's own host.
LEFT = ("PENSTOCK_DRIVER_HOST", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")
# Its worker saw that it ended: nothing of it is left. ERROR is also said of all drivers of a worker that is lost.
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

    def submit(self, log: Path) -> str:
        """Have it started; what the master calls it. SettingError, ClusterError."""
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
        # For the connection to its worker. The secret the worker puts in its environment.
        known = [f"-D{k}={v}" for k, v in self.conf.items() if k.startswith(("spark.auth", "spark.network.crypto."))]
        said = _ask(
            "submit",
            self.master,
            file=str(launch.DRIVER),
            arguments=arguments,
            environment=self.environment(),
            class_path=list(filter(None, [*self.conf.get("spark.driver.extraClassPath", "").split(os.pathsep), *jars])),
            # Also what the JVM itself says goes to the one log.
            options=[*options, "-XX:+DisplayVMOutputToStderr", *(o for o in known if "secret" not in o)],
            memory=_mebibytes(self.conf["spark.driver.memory"]),
            cores=int(self.conf.get("spark.driver.cores", "1")),
        )
        return str(said["id"])

    def environment(self) -> dict[str, str]:
        """What the driver is given, over what its worker has."""
        given = {k: v for k, v in launch.environment().items() if KEPT.fullmatch(k) and k not in LEFT}
        given |= {"PENSTOCK_DEPLOY": "cluster", "PENSTOCK_SPARK_MASTER": self.master}
        return given | ({"SPARK_LOCAL_IP": "127.0.0.1"} if executors_here(self.master) else {})


@dataclass(frozen=True)
class ClusterDriverState:
    """What a master says of a driver.

    Attributes:
        state: As Spark names it; MISSING if it knows none of that id, empty if the master is away.
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
        """Nobody knows whether anything of it is left."""
        return self.state in LOST

    def wait_reason(self, d: DriverRow) -> str | None:
        """What it waits for, if it has no place yet."""
        if self.state != "SUBMITTED":
            return None
        return f"waits for a worker with room for its driver; {d.master} has {self.free}"


_seen: dict[str, tuple[float, ClusterDriverState]] = {}
_asked: set[str] = set()
_lock, _one_at_a_time = Lock(), Lock()


def driver_state(d: DriverRow, age: float = LOOK_EVERY, *, wait: bool = True) -> ClusterDriverState:
    """What its master says of a driver, or said up to `age` seconds ago.

    Args:
        wait: Whether to wait for the answer. Else a thread asks and the last answer counts; its state is empty before
            the first.
    """
    key = f"{d.submission} {d.master}"
    at, found = _seen.get(key, (0.0, ClusterDriverState("", "its master was not asked yet")))
    if at and time.monotonic() - at < age:
        return found
    if wait:
        return _look(d, age)
    with _lock:
        if key not in _asked:
            _asked.add(key)
            Thread(target=_look_beside, args=(d, age), name=f"look-{d.submission}", daemon=True).start()
    return found


def _look_beside(d: DriverRow, age: float) -> None:
    try:
        _look(d, age)
    finally:
        with _lock:
            _asked.discard(f"{d.submission} {d.master}")


def _look(d: DriverRow, age: float) -> ClusterDriverState:
    # Each question starts a JVM.
    with _one_at_a_time:
        at, found = _seen.get(f"{d.submission} {d.master}", (0.0, ClusterDriverState("")))
        if at and time.monotonic() - at < age:
            return found
        return _heard(d, "look")


def kill(d: DriverRow) -> ClusterDriverState:
    """Have a driver killed by its worker; what its master says then, which may be that it runs on."""
    return _heard(d, "kill")


def _heard(d: DriverRow, do: str) -> ClusterDriverState:
    try:
        said = _ask(do, d.master or "", id=d.submission)
        found = ClusterDriverState(said["state"], said["why"], said["free"])
    except ClusterError as e:
        found = ClusterDriverState("", str(e))
    _seen[f"{d.submission} {d.master}"] = (time.monotonic(), found)
    return found


def _ask(do: str, master: str, **more: Any) -> dict[str, Any]:
    what = f"the Spark master {master} did not do what was asked ({do} a driver)"
    hint = "see that it runs, and that PENSTOCK_SPARK_SECRET is its own"
    asked = json.dumps({"do": do, "master": master, **more})
    command = [sys.executable, "-m", "penstock.engine.jvm.standalone_master"]
    try:
        done = subprocess.run(
            command, input=asked, env=launch.environment(), capture_output=True, text=True, timeout=TIMEOUT, check=True
        )
    except subprocess.TimeoutExpired as e:
        raise ClusterError(what, got=f"no answer within {TIMEOUT:g} s", hint=hint) from e
    except subprocess.CalledProcessError as e:
        raise ClusterError(what, got=str(e.stderr).strip()[-1000:], hint=hint) from e
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in said:
        raise ClusterError(what, got=said["error"], hint=hint)
    return said


def _mebibytes(memory: str) -> int:
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if not found:
        raise SettingError("PENSTOCK_DRIVER_MEMORY is no size of a heap", got=memory, hint="write it as 768m or 2g")
    return max(1, (int(found[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[found[2]]) >> 20)
