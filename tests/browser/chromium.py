"""Finds a headless Chromium for the browser tests, or says why there is none and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from penstock.host.files import locked
from penstock.settings import settings

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
PACKAGES = ("chromium-headless-shell", "chromium")
ARGS = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
# With whoever else uses apt-get now, in seconds.
PATIENT = ("-o", "DPkg::Lock::Timeout=300")
ADVICE = "install Chromium (Debian: apt-get install chromium-headless-shell) or set PENSTOCK_CHROMIUM to its binary"


class NoChromiumError(Exception):
    """No Chromium can be had here; the message says what to do."""


@dataclass(frozen=True)
class Chromium:
    path: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def args(self) -> list[str]:
        # Chromium refuses its sandbox to root.
        return [*ARGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def find() -> Chromium:
    """The first there is: named by PENSTOCK_CHROMIUM, on PATH, installed by apt, or unpacked into the cache.

    A download happens only where neither of the first two is there; without root it needs no right beyond `apt-get
    download`.
    """
    named = os.environ.get("PENSTOCK_CHROMIUM")
    if named:
        return _checked(Chromium(Path(named)))
    if found := _on_path():
        return _checked(found)
    if shutil.which("apt-get") is None:
        raise NoChromiumError(f"no Chromium on PATH, and no apt-get to fetch one; {ADVICE}")
    # Several workers run browser tests, and apt-get refuses where another one runs.
    with locked(settings().cache / ".chromium.lock"):
        made = _on_path() or (_install() if os.geteuid() == 0 else unpacked(settings().cache / "chromium"))
    return _checked(made)


def _on_path() -> Chromium | None:
    return next((Chromium(Path(found)) for name in NAMES if (found := shutil.which(name))), None)


def _checked(chromium: Chromium) -> Chromium:
    try:
        _run([str(chromium.path), "--version"], env={**os.environ, **chromium.env})
    except (OSError, subprocess.SubprocessError) as e:
        detail = (getattr(e, "stderr", "") or str(e)).strip().splitlines()
        raise NoChromiumError(f"{chromium.path} does not start ({detail[-1] if detail else e}); {ADVICE}") from e
    return chromium


def _install() -> Chromium:
    failure: Exception | None = None
    for package in PACKAGES:
        for refresh in (False, True):
            try:
                if refresh:
                    _run(["apt-get", "update"])
                _run(["apt-get", "install", "-y", *PATIENT, "--no-install-recommends", package])
            except subprocess.SubprocessError as e:
                failure = e
                continue
            if found := shutil.which(package):
                return Chromium(Path(found))
    raise NoChromiumError(f"apt-get could not install a Chromium ({failure}); {ADVICE}")


def unpacked(place: Path) -> Chromium:
    """A Chromium unpacked under `place` without root, with the libraries the system lacks."""
    binary = place / "root" / "usr" / "lib" / "chromium" / PACKAGES[0]
    if not binary.exists():
        # Unpacked elsewhere and moved when whole, so that an interrupted download is not taken for a browser.
        part = place.with_name(f"{place.name}.part-{os.getpid()}")
        try:
            _unpack(part)
            shutil.rmtree(place, ignore_errors=True)
            part.rename(place)
        except (OSError, subprocess.SubprocessError) as e:
            raise NoChromiumError(f"apt-get could not fetch a Chromium ({_said(e)}); {ADVICE}") from e
        finally:
            shutil.rmtree(part, ignore_errors=True)
    # Some libraries keep their own in a folder beside them and name it by its absolute place.
    libraries = sorted({found.parent for found in (place / "root").glob("**/lib/*-linux-gnu*/**/*.so*")})
    return Chromium(binary, {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))})


def _unpack(place: Path) -> None:
    place.mkdir(parents=True)
    wanted = [PACKAGES[0], *_missing(PACKAGES[0])]
    _run(["apt-get", "download", *wanted], cwd=place)
    for deb in sorted(place.glob("*.deb")):
        _run(["dpkg", "-x", str(deb), str(place / "root")])
        deb.unlink()


def _missing(package: str) -> list[str]:
    """The packages apt would install beside it: what it needs and the system lacks. A simulation needs no root."""
    plan = _run(["apt-get", "install", "--simulate", "--no-install-recommends", package])
    return sorted({line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")} - {package})


def _run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    env = {**(env or os.environ), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True, text=True, timeout=600)
    return done.stdout


def _said(error: Exception) -> str:
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
