"""Makes the Python environment: `python3 penstock/bootstrap.py [--tests] [--this-python]`.

Runs with any Python from 3.6 on and nothing installed, so that it can say what is missing; does nothing when all is
there. `--this-python`: somebody named the Python that runs it, so an environment of another one is no substitute.
"""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

PROJECT = Path(__file__).resolve().parent.parent
ENVIRONMENT = PROJECT / ".venv"
SUPPORTED = ((3, 11), (3, 12), (3, 13))
# In the order in which the Makefile tries them.
NAMES = (*("python{}.{}".format(*version) for version in reversed(SUPPORTED)), "python3", "python")
NEEDED_DISK = 4 * 1024**3
# Says what a Python is. Debian has Pythons without ensurepip, which can make no environment.
PROBE = """import sys
try:
    import ensurepip
    without = ""
except ImportError:
    without = ", without venv"
print(".".join(map(str, sys.version_info[:3])) + without)
"""
LAST_LINES = 15
# uv (https://docs.astral.sh/uv) fetches packages side by side and compiles none: less than half of pip's time.
UV = "uv==0.13.9"
# Settings of pip that uv has as options, and settings that do not matter to uv. With any other one pip is used.
UV_OPTIONS = {"index-url": "--default-index", "find-links": "--find-links"}
NOT_OF_UV = {
    "cache-dir", "cert", "config-file", "default-timeout", "disable-pip-version-check", "no-input", "retries", "timeout"
}  # fmt: skip


def fail(what: str, hint: str) -> NoReturn:
    sys.exit(f"error: {what}\n  hint: {hint}")


def dotted(version: "tuple[int, ...]") -> str:
    return ".".join(map(str, version))


def supported() -> str:
    *others, newest = map(dotted, SUPPORTED)
    return f"Python {', '.join(others)} or {newest}"


def tried() -> str:
    """The Pythons that were looked for, and what was found."""
    found = []
    for name in NAMES:
        path = shutil.which(name)
        try:
            answer = subprocess.check_output([path, "-c", PROBE], stderr=subprocess.DEVNULL).decode() if path else ""
        except (OSError, subprocess.CalledProcessError):
            answer = "does not run"  # as those of pyenv that are not chosen
        found.append(f"{name} ({answer.strip() or 'not there'})")
    return ", ".join(found)


def check(named: bool) -> None:
    """Refuse early, and plainly, what would fail late and darkly. named: whether somebody chose this Python."""
    newest = dotted(SUPPORTED[-1])
    if sys.version_info[:2] not in SUPPORTED:
        have = f"{sys.executable} is Python {dotted(sys.version_info[:3])}"
        fail(
            f"Penstock needs {supported()}; {have if named else f'tried {tried()}'}",
            f"install one (Debian, Ubuntu: apt-get install python3-venv; anywhere: pyenv install {newest}, or "
            f"`uv python install {newest}`), then `make PYTHON=/path/to/python{newest} up`",
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as e:
        fail(
            f"this Python cannot make environments: {e}",
            f"install its venv package (Debian: apt-get install python{dotted(sys.version_info[:2])}-venv)",
        )
    free = shutil.disk_usage(str(PROJECT)).free
    if free < NEEDED_DISK:
        fail(
            f"the disk of {PROJECT} is nearly full: {free / 1024**3:.1f} GiB free, 4 are needed",
            "make room, or clone to another disk",
        )


def digest(files: "list[Path]") -> str:
    made = hashlib.sha256(str(PROJECT).encode())
    for path in files:
        made.update(path.read_bytes())
    return made.hexdigest()[:16]


def python() -> Path:
    return ENVIRONMENT / "bin" / "python"


def version_there() -> "tuple[int, ...] | None":
    """The version of the environment's Python; None if there is no environment, or only a part of one."""
    try:
        version = re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", (ENVIRONMENT / "pyvenv.cfg").read_text(), re.M)
    except OSError:
        return None
    return tuple(map(int, version.groups())) if version and python().exists() else None


def check_version(named: bool) -> None:
    """Refuse an environment of a Python that will not do: it may be somebody's own, so it is not replaced."""
    there, place = version_there(), ENVIRONMENT.name
    if there and there not in SUPPORTED:
        fail(
            f"the environment in {place} has Python {dotted(there)}; Penstock needs {supported()}",
            f"move {place} away, or remove it: `make env-clean`; then the same command again",
        )
    if there and named and there != sys.version_info[:2]:
        fail(
            f"the environment in {place} has Python {dotted(there)}, and {dotted(sys.version_info[:2])} was named",
            "`make env-clean` removes it and no data, then the same command again; without PYTHON= it is used as it is",
        )


def usable() -> bool:
    """Whether there is an environment that can be installed to. One without pip, as uv makes them, gets it."""
    try:
        return any(
            subprocess.call([str(python()), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
            for words in (["-c", "import pip"], ["-m", "ensurepip"])
        )
    except OSError:
        return False


def make_environment() -> None:
    anew = " anew, as its Python does not run" if ENVIRONMENT.exists() else ""
    version = dotted(sys.version_info[:3])
    print(f"Making the environment in {ENVIRONMENT.name}{anew}, with Python {version} of {sys.executable}", flush=True)
    shutil.rmtree(str(ENVIRONMENT), ignore_errors=True)
    if subprocess.call([sys.executable, "-m", "venv", str(ENVIRONMENT)]):
        fail(f"{sys.executable} could not make an environment", "read its message above")


def install(files: "list[Path]") -> None:
    """Install the packages of the lists, of which each line that is no comment and no option names one."""
    # The lists are complete, and to resolve them takes pip a tenth of its time.
    words = ["--no-deps", *(word for path in files for word in ("-r", str(path)))]
    lines = [line for path in files for line in path.read_text().splitlines()]
    number = len([line for line in lines if line[:1] not in ("", "#", "-")])
    if not uv(f"Installing {number} packages with uv", words):
        pip(f"Installing {number} packages", "packages.log", number, *words)


def compile_packages() -> None:
    """Compile all packages: pytest's workers start at once, and each of them would compile all that it imports."""
    show("Compiling the packages", sys.stdout.isatty())
    begun = time.time()
    # A seventh of all code is the packages' own tests, which nobody imports.
    options = ["-q", "-j", "0", "-x", "/tests/"]
    command = [str(python()), "-m", "compileall", *options, *map(str, ENVIRONMENT.glob("lib/python3.*"))]
    # Some packages have files that are no Python of this version, and that nothing imports.
    subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    show(f"Compiling the packages: done in {time.time() - begun:.0f} s", False)


def link() -> None:
    """Install the project itself in place: its command `penstock`, and its entry points for Airflow."""
    words = ("--no-deps", "--no-index", "--no-build-isolation", "--editable", str(PROJECT))
    pip("Installing the project", "project.log", 0, *words)


def uv(title: str, words: "list[str]") -> bool:
    """Install packages by uv; whether that is done. pip says what is wrong, and knows settings that uv has not.

    words: options of `uv pip install`, which pip has too.
    """
    settings = pip_settings()
    if settings.keys() - UV_OPTIONS.keys() - NOT_OF_UV:
        return False
    options = [f"{UV_OPTIONS[name]}={one}" for name in UV_OPTIONS for one in settings.get(name, "").split()]
    env = dict(os.environ, UV_SYSTEM_CERTS="1")
    if "cert" in settings:
        env["SSL_CERT_FILE"] = settings["cert"]
    folder = ENVIRONMENT / "uv"
    fetch = [*pip_command(), "--retries", "1", "--upgrade", "--target", str(folder), UV]
    command = [str(folder / "bin" / "uv"), "pip", "install", "--python", str(python()), *options, *words]
    done = not (run("Fetching uv", "uv.log", 0, fetch) or run(title, "packages.log", 0, command, env))
    shutil.rmtree(str(folder), ignore_errors=True)
    return done


def pip_settings() -> "dict[str, str]":
    """The settings of pip, of its files and of variables, by their names; one of several values has them all."""
    listed = subprocess.run(
        [str(python()), "-m", "pip", "config", "list"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    ).stdout.decode()
    found = re.findall(r"^[\w:]+\.([\w-]+)=('.*'|\".*\")$", listed, re.M)
    return {name: str(ast.literal_eval(value)) for name, value in found}


def pip_command() -> "list[str]":
    # Python compiles the modules that are imported; pip would compile all, in a third of its time.
    options = ["--disable-pip-version-check", "--no-input", "--no-compile", "--progress-bar", "off"]
    return [str(python()), "-m", "pip", "install", *options]


def pip(title: str, log_name: str, number: int, *words: str) -> None:
    """Run `pip install`; title, log_name, number: as of `run`."""
    if run(title, log_name, number, [*pip_command(), *words]):
        lines = (ENVIRONMENT / log_name).read_text(errors="replace").splitlines()
        # Where pip looks is nobody's business but its log's.
        last_lines = [line for line in lines if line.strip() and not line.startswith("Looking in ")][-LAST_LINES:]
        log_shown = f"{ENVIRONMENT.name}/{log_name}"
        fail(
            "\n    ".join([f"pip could not install the packages; the last lines of {log_shown}:", *last_lines]),
            "mend what pip names, then the same command again: it goes on where it stopped",
        )


def run(title: str, log_name: str, number: int, command: "list[str]", env: "dict[str, str] | None" = None) -> int:
    """Run a command, its output in a log, and tell of it in one line; without a terminal at its begin and end.

    number: packages that pip has to install; 0 if that is unknown.
    """
    log = ENVIRONMENT / log_name
    log_shown = f"{ENVIRONMENT.name}/{log_name}"
    begun = time.time()
    show(f"{title}; log: {log_shown}", sys.stdout.isatty())
    with log.open("wb") as file:
        running = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env)
    while running.returncode is None:
        try:
            running.wait(0.5)
        except subprocess.TimeoutExpired:
            if sys.stdout.isatty():
                show(f"{title}: {progress(log, number)}{time.time() - begun:.0f} s; log: {log_shown}", True)
    show(f"{title}: {'failed' if running.returncode else 'done'} in {time.time() - begun:.0f} s", False)
    return running.returncode


def progress(log: Path, number: int) -> str:
    """How far pip is, by its log and what it has put into the environment."""
    if not number:
        return ""
    text = log.read_text(errors="replace")
    if "\nInstalling collected packages" in text:
        there = len(list(ENVIRONMENT.glob("lib/python3.*/site-packages/*.dist-info")))
        return f"{min(there, number)} installed, "
    fetched = set(re.findall(r"^(?:Collecting|Requirement already satisfied:) ([\w.-]+)", text, re.M))
    return f"{min(len(fetched), number)} fetched, "


def show(line: str, goes_on: bool) -> None:
    """Print a line, on a terminal in place of the one before it. goes_on: whether another one replaces it."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        line = "\r" + line[:width].ljust(width)
    print(line, end="" if goes_on else "\n", flush=True)


def current(stamps: "dict[Path, str]") -> bool:
    """Whether the environment is there and was made of what is wanted."""
    return python().exists() and all(stamp.exists() and stamp.read_text() == wanted for stamp, wanted in stamps.items())


def main() -> None:
    named = "--this-python" in sys.argv[1:]
    files = [PROJECT / "requirements.txt"]
    stamps = {ENVIRONMENT / ".penstock": digest(files)}
    project = [PROJECT / "pyproject.toml", PROJECT / "penstock" / "__init__.py", *files]
    if "--tests" in sys.argv[1:]:
        files.append(PROJECT / "tests" / "requirements.txt")
        stamps[ENVIRONMENT / ".penstock-tests"] = digest(files)
    check_version(named)
    if not current(stamps):
        if not usable():
            check(named)
            make_environment()
        install(files)
        if "--tests" in sys.argv[1:]:
            compile_packages()
        for stamp, wanted in stamps.items():
            stamp.write_text(wanted)
    # An image is made of the packages before it has the project.
    stamp = ENVIRONMENT / ".penstock-project"
    if project[0].exists() and not current({stamp: digest(project)}):
        link()
        stamp.write_text(digest(project))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on where it stopped", file=sys.stderr)
        sys.exit(130)
