"""Makes the Python environment: `python3 penstock/bootstrap.py [--tests]`.

Runs with any Python 3 and nothing installed, so that it can say what is missing; does nothing when all is there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

PROJECT = Path(__file__).resolve().parent.parent
ENVIRONMENT = PROJECT / ".venv"
WANTED = (3, 11)
NEEDED_DISK = 3 * 1024**3


def fail(what: str, hint: str) -> NoReturn:
    sys.exit(f"error: {what}\n  hint: {hint}")


def check() -> None:
    """Refuse early, and plainly, what would fail late and darkly."""
    if sys.version_info[:2] != WANTED:
        have = ".".join(map(str, sys.version_info[:3]))
        fail(
            f"Penstock needs Python 3.11; {sys.executable} is Python {have}",
            "install it (Debian: apt-get install python3.11 python3.11-venv; anywhere: pyenv install 3.11, or "
            "`uv python install 3.11`), then `make PYTHON=/path/to/python3.11 up`",
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as e:
        fail(
            f"this Python cannot make environments: {e}",
            "install its venv package (Debian: apt-get install python3.11-venv)",
        )
    free = shutil.disk_usage(str(PROJECT)).free
    if free < NEEDED_DISK:
        fail(
            f"the disk of {PROJECT} is nearly full: {free / 1024**3:.1f} GiB free, 3 are needed",
            "make room, or clone to another disk",
        )


def digest(files: list[Path]) -> str:
    made = hashlib.sha256(str(PROJECT).encode())
    for path in files:
        made.update(path.read_bytes())
    return made.hexdigest()[:16]


def python() -> Path:
    return ENVIRONMENT / "bin" / "python"


def usable() -> bool:
    """Whether there is an environment of the right Python, one that was not moved or half made."""
    probe = f"import sys, pip; sys.exit(sys.version_info[:2] != {WANTED!r})"
    try:
        return subprocess.call([str(python()), "-c", probe], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def install(files: list[Path]) -> None:
    # Python compiles the modules that are imported; pip would compile all, in a third of its time.
    pip(*(word for path in files for word in ("-r", str(path))))


def link() -> None:
    """Install the project itself in place: its command `penstock`, and its entry points for Airflow."""
    print("Installing the project", flush=True)
    pip("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(PROJECT))


def pip(*words: str) -> None:
    command = [str(python()), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-compile"]
    if subprocess.call([*command, *words]):
        fail("pip could not install the packages", "read its message above; the same command goes on where it stopped")


def current(stamps: dict[Path, str]) -> bool:
    """Whether the environment is there and was made of what is wanted."""
    return python().exists() and all(stamp.exists() and stamp.read_text() == wanted for stamp, wanted in stamps.items())


def main() -> None:
    files = [PROJECT / "requirements.txt"]
    stamps = {ENVIRONMENT / ".penstock": digest(files)}
    project = [PROJECT / "pyproject.toml", PROJECT / "penstock" / "__init__.py", *files]
    if "--tests" in sys.argv[1:]:
        files.append(PROJECT / "tests" / "requirements.txt")
        stamps[ENVIRONMENT / ".penstock-tests"] = digest(files)
    if not current(stamps):
        if not usable():
            check()
            print(f"Making the environment in {ENVIRONMENT.name}", flush=True)
            shutil.rmtree(str(ENVIRONMENT), ignore_errors=True)
            subprocess.check_call([sys.executable, "-m", "venv", str(ENVIRONMENT)])
        print(f"Installing the packages of {', '.join(str(f.relative_to(PROJECT)) for f in files)}", flush=True)
        install(files)
        for stamp, wanted in stamps.items():
            stamp.write_text(wanted)
    # An image is made of the packages before it has the project.
    stamp = ENVIRONMENT / ".penstock-project"
    if project[0].exists() and not current({stamp: digest(project)}):
        link()
        stamp.write_text(digest(project))


if __name__ == "__main__":
    os.environ.setdefault("PIP_PROGRESS_BAR", "on")
    main()
