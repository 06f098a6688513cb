"""Real servers for tests: MariaDB, and MySQL from Debian's unstable packages, the only registry that has one.

MySQL is fetched by apt with lists of its own, unpacked into the cache, and started by the C library that it was built
for; nothing is installed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from functools import cache
from pathlib import Path
from typing import ClassVar

from penstock.devstack import debian_packages
from penstock.devstack.servers.base import owner_option
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.settings import settings

VERSION = "9.7.4-2"
# Of the server's package. What it links to is as unstable has it today, signed by Debian.
SHA256 = "628d2d7d2dc827507bcae80677a9950766b002bec2c658cb96343d9f324f8660"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = "Types: deb\nURIs: {mirror}\nSuites: sid\nComponents: main\nSigned-By: {keys}\n"
# For its helpers alone; the server runs without.
UNUSED = (
    "perl",
    "libperl",
    "gcc-",
    "libc-gconv",
    "libdb",
    "libgdbm",
    "openssl-",
    "libsasl2-modules",
    "libtirpc-common",
)


@cache
def root() -> Path:
    """The unpacked packages, fetched if need be. HostError if this server cannot be had."""
    if not debian_packages.is_available() or not KEYS.exists():
        raise HostError("MySQL comes from Debian's packages", got="no apt-get or no Debian keys here")
    target = settings().cache / f"mysql-{VERSION}"
    with publish(target) as fresh:
        if fresh:
            _fetch(fresh)
    return target / "root"


def _fetch(fresh: Path) -> None:
    apt, downloads = fresh / "apt", fresh / "downloads"
    for folder in (downloads, apt / "sources", apt / "lists" / "partial", apt / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True)
    (apt / "sources" / "sid.sources").write_text(SOURCES.format(mirror=_mirror(), keys=KEYS))
    (apt / "status").touch()
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": apt / "sources",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    get = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    debian_packages.run([*get, "update"], downloads)
    planned = debian_packages.run(
        [*get, "--simulate", "--no-install-recommends", "install", f"mysql-server-core={VERSION}"], downloads
    )
    names = [n for n in re.findall(r"^Inst (\S+)", planned, re.MULTILINE) if not n.startswith(UNUSED)]
    debian_packages.run([*get, "download", *names], downloads)
    [server] = downloads.glob("mysql-server-core_*.deb")
    if (found := hashlib.sha256(server.read_bytes()).hexdigest()) != SHA256:
        raise HostError("the package of MySQL is not the one that was pinned", got=found)
    debian_packages.unpack(downloads, fresh / "root")
    shutil.rmtree(apt)


def _mirror() -> str:
    """Where this machine has its packages from."""
    found = debian_packages.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], Path("/")
    )
    mirrors = [line for line in found.splitlines() if "security" not in line]
    if not mirrors:
        raise HostError("MySQL comes from Debian's packages", got="apt has no lists here: `apt-get update`")
    return mirrors[0]


PASSWORD = "Grüße, Мир: €"
LOGIN = f"""
CREATE USER IF NOT EXISTS 'umlaut'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL PRIVILEGES ON `penstock\\_%`.* TO 'umlaut'@'127.0.0.1';
"""


class MariaDBWithLogin(MariaDB):
    """The platform's MariaDB with another user, whose password is not Latin-1."""

    SETUP = MariaDB.SETUP + LOGIN


class MySQL(MariaDBWithLogin):
    """A private MySQL 9 with the databases and the users of `MariaDBWithLogin`."""

    name: str = "mysql"
    label: str = "the MySQL server"
    variable: ClassVar[str] = ""
    start_timeout: ClassVar[float] = 120.0

    def __init__(self, home: Path, port: int) -> None:
        super().__init__(home, port)
        self.folder = home / "mysql"

    def environment(self) -> dict[str, str]:
        return {}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "setup.sql").write_text(self.SETUP)
        if (self.folder / "data").exists():
            return
        fresh = self.folder / "data.part"
        shutil.rmtree(fresh, ignore_errors=True)
        done = process.run_captured([*self._server(fresh), "--initialize-insecure"])
        if done.returncode:
            raise HostError("MySQL's data folder could not be laid out", got=(done.stdout + done.stderr)[-800:])
        fresh.rename(self.folder / "data")

    def _server(self, data: Path) -> list[str]:
        place = root() / "usr"
        libraries, share = place / "lib" / "x86_64-linux-gnu", place / "share" / "mysql"
        return [
            str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(place / "sbin" / "mysqld"),
            "--no-defaults", f"--basedir={place}", f"--datadir={data}", f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}", *owner_option(),
            "--innodb-buffer-pool-size=64M", "--innodb-redo-log-capacity=32M", "--innodb-flush-log-at-trx-commit=2",
        ]  # fmt: skip

    def command(self) -> list[str]:
        return [
            *self._server(self.folder / "data"), "--socket=mysql.sock", "--pid-file=mysql.pid", "--mysqlx=OFF",
            f"--init-file={self.folder / 'setup.sql'}", "--bind-address=127.0.0.1", f"--port={self.port}",
            "--skip-name-resolve", "--auto-generate-certs=OFF", "--default-time-zone=+00:00", "--server-id=1",
            "--secure-file-priv=NULL",
        ]  # fmt: skip
