"""A JVM with a Spark session that commands such as previews use, and the drivers of several apps (`PENSTOCK_TOGETHER`).

    python -m penstock.engine.shared_session LOG [stay]

A driver that finds none starts it, and `penstock up` does. Each driver or command stays a process of its own, with its
own code, and gets a gateway of its own to the JVM: so Spark calls the functions of the process whose query runs. The
connection that it asks by stays open for as long as it runs. When it is closed, its queries are stopped, also those of
a process that was killed. The session ends when its JVM has ended, and, unless it is to stay, when nobody had it for a
while.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import signal
import socket
import socketserver
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from penstock.engine.checkpoint import s3a
from penstock.engine.jvm import bridge, shared_jvm
from penstock.engine.jvm.shared_jvm import DRIVER_CONF, Gateway
from penstock.engine.session import INTERPRETED, open_session, use_utc
from penstock.errors import HostError
from penstock.host import files, log_files, process
from penstock.host.process import ProcessRecord
from penstock.settings import LIBRARY, settings
from penstock.supervision import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Seconds.
START_TIMEOUT = 180.0
IDLE_TIMEOUT, WARM_UP_TIMEOUT = 60.0, 120.0
LOOK_EVERY = 1.0
# A JVM that does not answer for so long is killed: the drivers that start anew would wait for it too.
ANSWER_TIMEOUT = 60.0
REQUEST_BYTES = 4096
STAY = "stay"
PREFIX = "shared-session-"
"""Of the name of the process."""
# A variable of the process that Spark forks Python workers from, for each set of variables: a digest of them.
WORKERS_VARIABLE = "WORKERS_ID"


@dataclass(frozen=True)
class SharedSession:
    """A driver's part of the shared session.

    Attributes:
        spark: A session of the driver's own in the shared JVM; it must not be stopped.
        log: The file in which the JVM writes.
    """

    spark: SparkSession
    log: str
    _connection: socket.socket

    def close(self) -> None:
        """Give it back; what runs in it is stopped."""
        self._connection.close()


def name() -> str:
    """The name of the process: with other settings of Spark, another one runs."""
    s = settings()
    versions = [sys.prefix, metadata.version("pyspark"), metadata.version("penstock")]
    store = s3a.spark_conf(s.checkpoint_root) if s3a.is_object_store(s.checkpoint_root) else {}
    chosen = [*versions, s.spark_master, s.together_memory, s.java_options, s.spark_conf, s.checkpoint_root, store]
    # They may hold secrets.
    return f"{PREFIX}{hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8]}"


def _environment() -> dict[str, str]:
    """The variables of the process: those of a driver, without the code of a release."""
    variables, code = launch.environment() | launch.connection_variables(), settings().project
    paths = map(Path, variables["PYTHONPATH"].split(os.pathsep))
    library = [str(path) for path in paths if path == LIBRARY or not path.is_relative_to(code)]
    memory = settings().together_memory
    return {**variables, "PYTHONPATH": os.pathsep.join(library), "PENSTOCK_DRIVER_MEMORY": memory}


def is_ready() -> bool:
    """Whether drivers can connect."""
    return _address() is not None


def attach(driver: str, **code: str) -> SharedSession:
    """The session for a driver, for as long as it runs. It is started if it does not run.

    Args:
        driver: The driver's incarnation; of another process, a text of its own.
        code: Further variables of its Python workers. They are shared by drivers with the same variables.

    Raises:
        HostError: It does not start, or ended meanwhile.
    """
    use_utc()
    os.environ.setdefault("PYSPARK_PYTHON", settings().worker_python)
    # Nobody ends it while this driver connects.
    with files.locked(_lock_file()):
        address = _address() or _started()
        variables = _worker_variables(code)
        try:
            connection = socket.create_connection(("127.0.0.1", address["port"]), timeout=START_TIMEOUT)
            request = {"token": address["token"], "driver": driver, "workers": variables[WORKERS_VARIABLE]}
            connection.sendall(json.dumps(request).encode() + b"\n")
            gateway = json.loads(connection.makefile("rb").readline())
            connection.settimeout(None)
            spark = shared_jvm.connect(gateway["port"], gateway["token"], variables).newSession()
        except (OSError, ValueError) as e:
            raise HostError("the shared Spark session has ended meanwhile", got=e, hint=f"read {address['log']}") from e
    spark.conf.set(DRIVER_CONF, driver)
    return SharedSession(spark, address["log"], connection)


@contextmanager
def attached_command(command: str) -> Iterator[SparkSession]:
    """The session for a command, with Python workers of its own: they have the code that is on the disk now.

    Raises:
        HostError: As `attach`; the JVM has ended within the block.
    """
    one = f"{command}-{uuid.uuid4()}"
    with closing(attach(one, WORKER_CODE=one)) as shared, shared_jvm.clear_end(shared.log):
        # Generated code is for queries that run on.
        for name, value in INTERPRETED.items():
            shared.spark.conf.set(name, value)
        yield shared.spark


def _worker_variables(code: Mapping[str, str]) -> dict[str, str]:
    """What this driver's Python workers have, in place of the variables of the JVM: its code and its settings."""
    prefixes = ("PENSTOCK_", "AIRFLOW_CONN_", "PYTHONPATH")
    own = {name: value for name, value in os.environ.items() if name.startswith(prefixes)} | dict(code)
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    return {**own, WORKERS_VARIABLE: digest}


def command(log: Path, *more: str) -> list[str]:
    """The command line of the process. log: the file of what it writes."""
    return [sys.executable, "-m", "penstock.engine.shared_session", str(log), *more]


def start() -> None:
    """Start the process if it does not run, to stay. One can connect some seconds later."""
    with files.locked(_lock_file()):
        _process(STAY)


def _process(*more: str) -> ProcessRecord:
    """The process that runs, or is started now. Under the lock, or another one would be started beside it."""
    run = settings().home / "run"
    if (record := process.read(run, name())) is not None and record.process() is not None:
        return record
    path = launch.new_log("shared-session")
    with files.owner_only():
        return process.spawn(name(), command(path, *more), run=run, log=path, env=_environment())


def _started() -> dict[str, Any]:
    """How to connect, to the process that runs or is started now. HostError if it cannot be started."""

    def is_settled() -> bool:
        return _address() is not None or record.process() is None

    # One that was idle may be about to end; another one then follows it.
    for _ in range(2):
        record = _process()
        process.wait_for(is_settled, START_TIMEOUT)
        if address := _address():
            return address
    process.stop(record)
    path = last_log()
    raise HostError(
        "the Spark session that apps share does not start",
        got=log_files.tail_text(path) or f"nothing in {path}",
        hint=f"read {path}; apps have sessions of their own with PENSTOCK_TOGETHER empty",
    )


def last_log() -> Path:
    """The log of the process that was started last."""
    return max(launch.logs_of("shared-session"), default=settings().logs / "driver-shared-session.log")


def _lock_file() -> Path:
    return settings().home / "run" / f"{name()}.lock"


def _address_file() -> Path:
    """The file that says how to connect. The process holds a lock on it."""
    return settings().home / "run" / f"{name()}.address"


def _address() -> dict[str, Any] | None:
    """How to connect; None if no process runs, also if one was killed and left its file."""
    try:
        with _address_file().open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                address: dict[str, Any] = json.load(handle)
                return address
    except (OSError, ValueError):
        pass
    return None


class SessionServer(socketserver.ThreadingTCPServer):
    """Gives each driver that connects a gateway to the JVM, until the driver closes its connection."""

    daemon_threads = True

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(("127.0.0.1", 0), _Driver)
        self.spark, self.token = spark, secrets.token_hex()
        self.changed_at = time.monotonic()
        self._workers: dict[str, str] = {}
        self._changing = threading.Lock()
        # A driver that comes after another one of its app finds none of its queries.
        self._ending = threading.Lock()

    @property
    def idle_seconds(self) -> float:
        """For how long there has been no driver."""
        with self._changing:
            return 0.0 if self._workers else time.monotonic() - self.changed_at

    @contextmanager
    def gateway(self, driver: str, workers: str) -> Iterator[Gateway]:
        """A gateway to the JVM for a driver, whose queries and Python workers are ended with it."""
        with self._changing:
            self._workers[driver] = workers
        try:
            with self._ending:
                gateway = Gateway.open(self.spark)
            try:
                yield gateway
            finally:
                with self._ending:
                    stopped = shared_jvm.stop_queries(self.spark, driver)
                    gateway.close()
                log.info("driver %s has left%s", driver[:8], f"; stopped {', '.join(stopped)}" if stopped else "")
        finally:
            with self._changing:
                del self._workers[driver]
                self.changed_at = time.monotonic()
                if workers not in self._workers.values():
                    _end_workers(workers)


def _end_workers(workers: str) -> None:
    """End the process that Spark forks Python workers of this id from, and these: Spark would keep it for ever."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.environ().get(WORKERS_VARIABLE) == workers:
                child.kill()


class _Driver(socketserver.StreamRequestHandler):
    """The connection of one driver."""

    server: SessionServer

    def handle(self) -> None:
        with suppress(ValueError, KeyError, TypeError, OSError):
            request = json.loads(self.rfile.readline(REQUEST_BYTES))
            if not hmac.compare_digest(str(request["token"]), self.server.token):
                return
            driver, workers = str(request["driver"]), str(request["workers"])
            with self.server.gateway(driver, workers) as gateway:
                log.info("driver %s has come", driver[:8])
                self.wfile.write(json.dumps({"port": gateway.port, "token": gateway.token}).encode() + b"\n")
                # Nothing more is sent: this returns when the driver has closed the connection, or has ended.
                self.rfile.read(1)


def main() -> int:
    """Keep the session until nobody has it, its JVM ends, or SIGTERM. The first argument is the file of its log."""
    from penstock import logs

    logs.setup("shared-session")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    log_path, stays = sys.argv[1], STAY in sys.argv[2:]
    spark = open_session("shared-session")
    server = SessionServer(spark)
    threading.Thread(target=server.serve_forever, name="drivers", daemon=True).start()
    with files.owner_only():
        _lock_file().parent.mkdir(parents=True, exist_ok=True)
    address = {"port": server.server_address[1], "token": server.token, "log": log_path}
    files.write_private(_address_file(), json.dumps(address))
    with _address_file().open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        log.info("the session is ready")
        if not settings().is_any_together:
            _warm_up(spark)
        why = _keep(spark, server, stays=stays)
    if why:
        log.error("the session ends: %s", why)
        shared_jvm.kill(spark)
        return 1
    log.info("the session ends: it had no driver for %g s", IDLE_TIMEOUT)
    shared_jvm.end(spark)
    return 0


def _warm_up(spark: SparkSession) -> None:
    """Preview streams of the project until one has read a batch, so that the JVM has loaded and compiled what it takes.

    Streams that write to no topic, and cannot be previewed, come last.
    """
    from penstock.catalog import partial_catalog
    from penstock.engine.warm_up import warm_up

    until = time.monotonic() + WARM_UP_TIMEOUT
    streams = partial_catalog()[0].streams.values()
    for stream in sorted(streams, key=lambda one: any(o.delivery != "exactly once" for o in one.outputs.values())):
        if warm_up(spark, stream, lambda: time.monotonic() > until) or time.monotonic() > until:
            return


def _keep(spark: SparkSession, server: SessionServer, *, stays: bool) -> str:
    """Return when the process is to end; why, if its JVM cannot be used any more."""
    with ThreadPoolExecutor(1, "answers") as pool:
        while True:
            time.sleep(LOOK_EVERY)
            try:
                if not pool.submit(bridge.is_alive, spark).result(ANSWER_TIMEOUT):
                    return "Spark has stopped its context"
            except TimeoutError:
                shared_jvm.kill(spark)  # ends the call
                return f"its JVM does not answer for {ANSWER_TIMEOUT:g} s"
            except Exception as e:
                return f"its JVM has ended: {type(e).__name__}"
            if stays or server.idle_seconds < IDLE_TIMEOUT:
                continue
            with files.locked(_lock_file()):
                # A driver may have come meanwhile.
                if server.idle_seconds > IDLE_TIMEOUT:
                    _address_file().unlink(missing_ok=True)
                    return ""


if __name__ == "__main__":
    sys.exit(main())
