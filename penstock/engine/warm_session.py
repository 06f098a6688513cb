"""A Spark session that is kept ready for commands that show what a stream or a sink does.

    python -m penstock.engine.warm_session

runs until SIGTERM. A command that borrows the session is a process of its own, with the code that is on the disk now:
it connects to this JVM, which has loaded and compiled what a query needs, instead of starting one. One command at a
time has it, by a lock that ends with the process; another one starts a JVM of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.engine.jvm import shared_jvm
from penstock.engine.session import INTERPRETED, open_session, submit_conf, use_utc
from penstock.errors import HostError, PenstockError
from penstock.host import files
from penstock.settings import LIBRARY, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# A borrower's objects stay in the JVM: after so many borrowers a new JVM takes its place.
MAX_BORROWERS = 20
WARM_UP_SECONDS = 120.0
# Workers that live on would have the code of an earlier command.
CONF = {"spark.python.worker.reuse": "false", **INTERPRETED}
# Spark forks workers from a process that has loaded code of Penstock, and starts another one for other variables.
CODE_VARIABLE = "WORKER_CODE"
# Settings of Spark in which the session may differ from what a command asks for.
MAY_DIFFER = {"spark.app.name", "spark.master", "spark.driver.memory", "spark.driver.maxResultSize"}


@contextmanager
def borrow() -> Iterator[SparkSession | None]:
    """The session, for this process alone; None if there is none, it has other settings, or another process has it.

    Raises:
        HostError: Its JVM has ended within the block.
    """
    # Where no session is kept, there is no lock either.
    if _address() is None:
        yield None
        return
    with ExitStack() as until_returned:
        spark = until_returned.enter_context(_lock()) and _connect()
        if not spark:
            # Others may borrow it while this process has a session of its own.
            until_returned.close()
            yield None
            return
        # Queries of a borrower that was killed would call functions of this process.
        shared_jvm.stop_work(spark)
        until_returned.callback(shared_jvm.stop_work, spark)
        # A command that is killed leaves its views and settings in a session of its own.
        with shared_jvm.clear_end():
            yield spark.newSession()


def is_kept(home: Path | None = None) -> bool:
    """Whether a session is ready to be borrowed, in the home of the settings or in another one."""
    return _address(home) is not None


def is_outdated(home: Path | None = None) -> bool:
    """Whether the session that is ready has other settings, as after an upgrade of Spark."""
    address = _address(home)
    return address is not None and address["settings"] != _settings_digest()


def _file(home: Path | None = None) -> Path:
    """The file that says how to connect. The keeper of the session holds a lock on it."""
    return (home or settings().home) / "run" / "warm-session.address"


@contextmanager
def _lock() -> Iterator[bool]:
    """Whether this process holds the lock of the session."""
    with (settings().home / "run" / "warm-session.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _address(home: Path | None = None) -> dict[str, Any] | None:
    """How to connect; None if no process keeps a session, also if one was killed and left its file."""
    try:
        with _file(home).open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                address: dict[str, Any] = json.load(handle)
                return address
    except (OSError, ValueError):
        pass
    return None


def _publish(spark: SparkSession) -> IO[str]:
    """Say how to connect, for as long as the file that is returned is open."""
    port, token = shared_jvm.address(spark)
    with files.owner_only():
        _file().parent.mkdir(parents=True, exist_ok=True)
    files.write_private(_file(), json.dumps({"port": port, "token": token, "settings": _settings_digest()}))
    handle = _file().open()
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _connect() -> SparkSession | None:
    """The session, for the process that holds the lock; None if it has other settings, or its JVM has just ended."""
    address = _address()
    if address is None or address["settings"] != _settings_digest():
        return None
    use_utc()
    os.environ.setdefault("PYSPARK_PYTHON", settings().worker_python)
    try:
        return shared_jvm.connect(address["port"], address["token"], {CODE_VARIABLE: _library_code()})
    except OSError:
        return None


def _settings_digest() -> str:
    """A digest, as they may hold secrets, of what the JVM depends on. Its memory, cores and cache may differ."""
    s = settings()
    conf = submit_conf("", java_options=())
    compared = {name: value for name, value in conf.items() if name not in MAY_DIFFER}
    is_local = s.spark_master.startswith("local")
    chosen = [sys.prefix, metadata.version("pyspark"), str(s.project), is_local, compared]
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()


def _library_code() -> str:
    """Another text whenever the code of Penstock or the installed packages have changed."""
    sources = [path.stat().st_mtime_ns for path in (LIBRARY / "penstock").rglob("*.py")]
    return f"{len(sources)}-{max(sources)}-{Path(sysconfig.get_path('purelib')).stat().st_mtime_ns}"


def _warm_up(spark: SparkSession) -> None:
    """Preview streams of the project until one has read a batch, so that the JVM has loaded and compiled what it takes.

    Streams that write to no topic, and cannot be previewed, come last.
    """
    from penstock.catalog import partial_catalog
    from penstock.engine.warm_up import warm_up

    until = time.monotonic() + WARM_UP_SECONDS
    streams = partial_catalog()[0].streams.values()
    for stream in sorted(streams, key=lambda one: any(o.delivery != "exactly once" for o in one.outputs.values())):
        if warm_up(spark, stream, lambda: time.monotonic() > until) or time.monotonic() > until:
            return


def main() -> None:
    """Keep a session ready until SIGTERM. A JVM that has ended, or had MAX_BORROWERS, is replaced.

    Raises:
        HostError: Another process keeps one, or the JVM has ended before anybody used it, and would do so again.
    """
    from penstock import logs

    logs.setup("warm-session")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    if is_kept():
        raise HostError("a session is kept already", got=_file(), hint="`penstock status` shows it as warm-session")
    _file().unlink(missing_ok=True)
    # The workers that borrowers find ready have the code of now.
    spark = open_session(
        "warm-session", log_level="fatal", conf=CONF | {f"spark.executorEnv.{CODE_VARIABLE}": _library_code()}
    )
    _warm_up(spark)
    with _publish(spark):
        log.info("the session is ready")
        _keep(spark)
    shared_jvm.end(spark)
    # PySpark starts one JVM in a process.
    os.execv(sys.executable, [sys.executable, "-m", "penstock.engine.warm_session"])


def _keep(spark: SparkSession) -> None:
    """Return when the JVM has to be replaced, and nobody can connect to it any more. HostError as for `main`."""
    borrowers, is_borrowed = 0, False
    while True:
        with _lock() as is_free:
            if is_free and is_borrowed:
                # The borrower may have been killed.
                shared_jvm.stop_work(spark)
                borrowers += 1
            is_borrowed = not is_free
            has_ended = shared_jvm.has_ended(spark)
            if has_ended or borrowers >= MAX_BORROWERS:
                # Under the lock, as somebody would connect to a JVM that is about to end.
                _file().unlink(missing_ok=True)
                break
        time.sleep(1)
    if has_ended and not borrowers and not is_borrowed:
        raise HostError(
            "the JVM of the session for previews has ended before anybody used it",
            got=settings().logs / "warm-session.log",
            hint="free memory, then `penstock up` again, or leave the session out: PENSTOCK_WARM_SESSION=off",
        )


if __name__ == "__main__":
    try:
        main()
    except PenstockError as e:
        sys.exit(f"error: {e}")
