"""The embedded MariaDB server."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pymysql

from penstock.devstack.servers import mariadb_binaries
from penstock.devstack.servers.base import ManagedServer, check_passes, owner_option
from penstock.errors import HostError
from penstock.host import ports, process
from penstock.settings import settings


class MariaDB(ManagedServer):
    """A private MariaDB with the databases `penstock_control` and `demo` and the user `penstock`.

    The user may also make databases of the form `penstock_<name>`, for tests. Row-based binary log, UTC.
    """

    name: str = "mariadb"
    label: str = "the MariaDB server"
    variable: ClassVar[str] = "PENSTOCK_MARIADB_PORT"

    SETUP = """
CREATE DATABASE IF NOT EXISTS penstock_control;
CREATE DATABASE IF NOT EXISTS demo;
CREATE USER IF NOT EXISTS 'penstock'@'127.0.0.1' IDENTIFIED BY 'penstock';
GRANT ALL PRIVILEGES ON `penstock\\_%`.* TO 'penstock'@'127.0.0.1';
GRANT ALL PRIVILEGES ON demo.* TO 'penstock'@'127.0.0.1';
GRANT PROCESS ON *.* TO 'penstock'@'127.0.0.1';
"""

    def __init__(self, home: Path | None = None, port: int | None = None) -> None:
        super().__init__(home or settings().home)
        self.port = port or settings().mariadb_port
        self.folder = self.home / "mariadb"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the control database."""
        return self.url_of("penstock_control")

    def url_of(self, database: str) -> str:
        return f"mysql+pymysql://penstock:penstock@127.0.0.1:{self.port}/{database}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"mysql": self.port}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Run by the server at each start; every statement changes nothing the second time.
        (self.folder / "setup.sql").write_text(self.SETUP)
        self._temporary.mkdir(exist_ok=True)
        data = self.folder / "data"
        if data.exists():
            return
        server = mariadb_binaries.find()
        fresh = self.folder / "data.part"
        shutil.rmtree(fresh, ignore_errors=True)
        # The script divides other paths than that of the data at spaces, and that too if an owner is given.
        layout = ["--basedir=.", f"--datadir={fresh}", "--skip-test-db"]
        env = self.environment() | {"TMPDIR": str(self._temporary)}
        done = process.run_captured([server.install, "--no-defaults", *layout], env=env, cwd=server.base)
        if done.returncode:
            raise HostError("the database's data folder could not be laid out", got=(done.stdout + done.stderr)[-800:])
        fresh.rename(data)

    @property
    def _temporary(self) -> Path:
        """Its own: a server that starts removes temporary tables, another server's too, which may crash that."""
        return self.folder / "tmp"

    def environment(self) -> dict[str, str]:
        # The server sets a umask of its own.
        return mariadb_binaries.find().environment | {"UMASK": "0600", "UMASK_DIR": "0700"}

    def command(self) -> list[str]:
        # Without --skip-ssl 11.4 makes an RSA key at each start, 10 s of work for a loopback address.
        server = mariadb_binaries.find()
        return [
            str(server.daemon), "--no-defaults", f"--basedir={server.base}", f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self._temporary}",
            # Taken from the data folder: an absolute path may be too long for a socket.
            "--socket=mariadb.sock", "--pid-file=mariadb.pid", f"--init-file={self.folder / 'setup.sql'}",
            "--bind-address=127.0.0.1", f"--port={self.port}", *owner_option(),
            "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL",
            "--binlog-expire-logs-seconds=86400", "--server-id=1", "--gtid-strict-mode=1",
            "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=2",
            "--skip-ssl", "--skip-name-resolve", "--performance-schema=OFF", "--character-set-server=utf8mb4",
            "--default-time-zone=+00:00", "--max-connections=200", "--log-warnings=1",
        ]  # fmt: skip

    def ready(self) -> bool:
        return ports.listens(self.port) and check_passes(self._select, pymysql.Error)

    def _select(self) -> bool:
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="penstock", password="penstock", database="penstock_control",
            connect_timeout=3, read_timeout=5,
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            return bool(cursor.execute("SELECT 1"))
