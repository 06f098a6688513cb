"""Programs from Debian packages, unpacked into the cache; they need neither root nor an installation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.settings import settings

ENGLISH = {"LC_ALL": "C"}


def is_available() -> bool:
    return bool(shutil.which("apt-get") and shutil.which("dpkg"))


def ensure_unpacked(name: str, packages: Iterable[str], libraries: Iterable[str] = ()) -> Path:
    """The root of a set of unpacked packages, downloaded if needed. libraries: used if this Debian release has them."""
    target = settings().cache / f"{name}-debian"
    with publish(target) as fresh:
        if fresh:
            downloads = fresh / "downloads"
            downloads.mkdir()
            available = [p for p in libraries if _has_candidate(p)]
            run(["apt-get", "download", "-q", *packages, *available], downloads)
            unpack(downloads, fresh / "root")
    return target / "root"


def unpack(downloads: Path, root: Path) -> None:
    """Unpack all packages of a folder, which is removed then."""
    for package in sorted(downloads.glob("*.deb")):
        run(["dpkg", "-x", str(package), str(root)], downloads)
    shutil.rmtree(downloads)


def environment(root: Path) -> dict[str, str]:
    """What a program under an unpacked root needs to find its libraries and helpers."""
    libraries = [str(p) for p in root.glob("usr/lib/*-linux-gnu*")]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep),
        "PATH": os.pathsep.join([str(root / "usr/sbin"), str(root / "usr/bin"), os.environ.get("PATH", "")]),
    }


def _has_candidate(package: str) -> bool:
    policy = process.run_captured(["apt-cache", "policy", package], env=ENGLISH)
    return any(line.strip().startswith("Candidate:") and "(none)" not in line for line in policy.stdout.splitlines())


def run(command: list[str], cwd: Path) -> str:
    """The output of a command. HostError if it fails."""
    done = process.run_captured(command, cwd=cwd, env=ENGLISH)
    if done.returncode:
        raise HostError(f"`{' '.join(command[:2])}` failed", got=(done.stderr or done.stdout).strip()[:300])
    return done.stdout
