"""A Spark session that is kept ready for commands that show what a stream or a sink does.

    python -m penstock.engine.warm_session

runs until SIGTERM. A command that borrows the session is a process of its own, with the code that is on the disk now:
it connects to this JVM, which has loaded and compiled what a query needs, instead of starting one. One command at a
time has it, by a lock that ends with the process; another one starts a JVM of its own.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.engine.jvm import shared_jvm
from penstock.engine.session import open_session, session_for, use_utc
from penstock.host import files
from penstock.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# A borrower's objects stay in the JVM: after so many borrowers a new JVM takes its place.
MAX_BORROWERS = 20
WARM_UP_SECONDS = 120.0
# Workers that live on would have the code of an earlier command.
CONF = {"spark.python.worker.reuse": "false"}


@contextmanager
def borrow() -> Iterator[SparkSession | None]:
    """The session, for this process alone; None if there is none, it has other settings, or another process has it."""
    # Where no session is kept, there is no lock either.
    if _address() is None:
        yield None
        return
    with _lock() as is_free:
        address = _address() if is_free else None
        if address is None or address["settings"] != _settings_text():
            yield None
            return
        try:
            use_utc()
            os.environ.setdefault("PYSPARK_PYTHON", settings().worker_python)
            spark = shared_jvm.connect(address["port"], address["token"])
        except OSError:
            # Its JVM has just ended.
            yield None
            return
        try:
            # A command that is killed leaves its views and settings in a session of its own.
            yield spark.newSession()
        finally:
            shared_jvm.stop_queries(spark)


def file() -> Path:
    """The file that says how to connect."""
    return settings().home / "run" / "warm-session.address"


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


def _address() -> dict[str, Any] | None:
    try:
        address: dict[str, Any] = json.loads(file().read_text())
    except (OSError, ValueError):
        return None
    return address


def _settings_text() -> str:
    """The settings on which the JVM depends. Memory and cores may differ."""
    s = settings()
    chosen = [sys.executable, s.spark_conf, s.java_options, s.checkpoint_root, s.spark_master.startswith("local")]
    return json.dumps(chosen, sort_keys=True)


def _warm_up(spark: SparkSession) -> None:
    """Preview streams of the project until one has read a batch, so that the JVM has loaded and compiled what it takes.

    Streams that write to no topic, and cannot be previewed, come last.
    """
    from penstock.catalog import partial_catalog
    from penstock.engine.operations.stream_preview import StreamPreview

    until, batches = time.monotonic() + WARM_UP_SECONDS, list[object]()
    streams = partial_catalog()[0].streams.values()
    for stream in sorted(streams, key=lambda one: any(o.delivery != "exactly once" for o in one.outputs.values())):
        run = StreamPreview(stream, session_for(spark, stream), settings().bootstrap, "newest", batches.append)
        try:
            with run.running() as plan:
                while any(plan.reads.values()) and not batches and run.wait(0.2) and time.monotonic() < until:
                    pass
        except Exception as e:
            # A project's own code may raise anything.
            log.info("the session is not warmed up by stream %s: %s", stream.name, e)
        if batches or time.monotonic() > until:
            return


def main() -> None:
    """Keep a session ready until SIGTERM. A JVM that has ended, or had MAX_BORROWERS, is replaced."""
    from penstock import logs

    logs.setup("warm-session")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    file().unlink(missing_ok=True)
    spark = open_session("warm-session", log_level="fatal", conf=CONF)
    _warm_up(spark)
    port, token = shared_jvm.address(spark)
    files.write_private(file(), json.dumps({"port": port, "token": token, "settings": _settings_text()}))
    log.info("the session is ready")
    borrowers, is_borrowed = 0, False
    while borrowers < MAX_BORROWERS and not shared_jvm.has_ended(spark):
        time.sleep(1)
        with _lock() as is_free:
            if is_free and is_borrowed:
                # The borrower may have been killed.
                shared_jvm.stop_queries(spark)
                borrowers += 1
            is_borrowed = not is_free
    # PySpark starts one JVM in a process. The old one ends as its standard input is closed.
    os.execv(sys.executable, [sys.executable, "-m", "penstock.engine.warm_session"])


if __name__ == "__main__":
    main()
