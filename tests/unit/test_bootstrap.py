"""The environment is made once; what stands in the way is said at once."""

from __future__ import annotations

import ast
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import bootstrap, settings

pytestmark = pytest.mark.processes

# A Python that claims a version: what it is asked is evaluated by the one that runs the tests.
CLAIMS = """#!/bin/sh
exec {python} -c 'import sys; sys.version_info = {version}; {more}exec(sys.argv[2])' "$@"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "requirements.txt").write_text("# nothing\n")
    (tmp_path / "tests" / "requirements.txt").write_text("# nothing\n")
    monkeypatch.setattr(bootstrap, "PROJECT", tmp_path)
    monkeypatch.setattr(bootstrap, "ENVIRONMENT", tmp_path / ".venv")
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    return tmp_path


def test_the_environment_lies_in_the_project() -> None:
    assert bootstrap.PROJECT == settings.PROJECT


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, with what make needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("make", "sh"):
        (folder / name).symlink_to(next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists()))
    monkeypatch.setenv("PATH", str(folder))
    return folder


def claim(path: Path, name: str, *version: int, more: str = "") -> None:
    """Put a Python of a version on the path."""
    (path / name).write_text(CLAIMS.format(python=sys.executable, version=version, more=more))
    (path / name).chmod(0o755)


def chosen(*words: str) -> str:
    """The command by which `make env` runs bootstrap.py."""
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    made = subprocess.run(
        ["make", "-n", "env", *words], cwd=settings.PROJECT, env=env, capture_output=True, text=True, check=True
    )
    return made.stdout.splitlines()[-1]


def test_make_takes_the_newest_python_that_will_do(path: Path) -> None:
    claim(path, "python3", 3, 14, 1)
    claim(path, "python3.12", 3, 12, 1)
    claim(path, "python3.11", 3, 11, 7)
    assert chosen() == "python3.12 penstock/bootstrap.py"
    claim(path, "python3.13", 3, 13, 0, more='sys.modules["ensurepip"] = None; ')
    assert chosen() == "python3.12 penstock/bootstrap.py", "it can make no environment"
    claim(path, "python3.13", 3, 13, 0)
    assert chosen() == "python3.13 penstock/bootstrap.py"
    assert chosen("PYTHON=python3.11") == "python3.11 penstock/bootstrap.py --this-python"
    for name in ("python3.11", "python3.12", "python3.13"):
        (path / name).unlink()
    assert chosen() == f"{path}/python3 penstock/bootstrap.py", "it says what is missing"
    claim(path, "python3", 3, 11, 2)
    assert chosen() == "python3 penstock/bootstrap.py"


def test_the_makefile_and_the_project_name_the_same_versions() -> None:
    makefile = (settings.PROJECT / "Makefile").read_text()
    assert f"for p in {' '.join(bootstrap.NAMES)}; do" in makefile
    assert f"{bootstrap.SUPPORTED[0]} <= sys.version_info[:2] <= {bootstrap.SUPPORTED[-1]}" in makefile
    assert makefile.count(bootstrap.supported()) == 3
    project = (settings.PROJECT / "pyproject.toml").read_text()
    (first, last) = bootstrap.SUPPORTED[0][1], bootstrap.SUPPORTED[-1][1]
    assert f'requires-python = ">=3.{first},<3.{last + 1}"' in project
    classified = re.findall(r"Programming Language :: Python :: 3\.(\d+)", project)
    assert [(3, int(minor)) for minor in classified] == list(bootstrap.SUPPORTED)


def test_every_benchmark_that_make_runs_is_there() -> None:
    named = re.search(r"^BENCH \?= (.+)$", (settings.PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert named
    folder = settings.PROJECT / "tests" / "bench"
    assert [name for name in named[1].split() if not (folder / f"{name}.py").is_file()] == []


def test_an_old_python_can_read_it() -> None:
    source = Path(bootstrap.__file__).read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source, "3.6 has no annotations there"


def test_where_no_python_will_do_all_that_were_tried_are_named(
    project: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(path, "python3.12", 3, 12, 3, more='sys.modules["ensurepip"] = None; ')
    claim(path, "python3", 3, 9, 2)
    (path / "python3.13").write_text("#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    (path / "python3.13").chmod(0o755)
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit) as refused:
        bootstrap.main()
    assert str(refused.value).splitlines()[0] == (
        "error: Penstock needs Python 3.11, 3.12 or 3.13; tried python3.13 (does not run), "
        "python3.12 (3.12.3, without venv), python3.11 (not there), python3 (3.9.2), python (not there)"
    )
    assert "hint: install one" in str(refused.value)
    assert not (project / ".venv").exists()
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--this-python"])
    with pytest.raises(SystemExit, match=rf"needs Python 3\.11.*; {sys.executable} is Python 3\.9\.2\n  hint: install"):
        bootstrap.main()


def environment_of(project: Path, version: str) -> Path:
    """An environment that claims a version, with something of somebody in it."""
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (project / ".venv" / "bin" / "python").chmod(0o755)
    (project / ".venv" / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    mine = project / ".venv" / "mine"
    mine.touch()
    return mine


def test_an_environment_of_a_python_that_will_not_do_is_not_replaced(project: Path) -> None:
    mine = environment_of(project, "3.10.4")
    with pytest.raises(SystemExit, match=r"\.venv has Python 3\.10; Penstock needs.*\n  hint: move \.venv away"):
        bootstrap.main()
    assert mine.exists()


def test_an_environment_keeps_its_python_unless_another_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = next(version for version in bootstrap.SUPPORTED if version != sys.version_info[:2])
    mine = environment_of(project, f"{bootstrap.dotted(other)}.1")
    monkeypatch.setattr(bootstrap, "install", lambda _: None)
    bootstrap.main()
    assert mine.exists()
    assert (project / ".venv" / ".penstock").exists(), "the packages were installed to it"
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--this-python"])
    with pytest.raises(SystemExit, match=r"and 3\.\d+ was named\n  hint: `make env-clean`"):
        bootstrap.main()
    assert mine.exists()


def test_a_python_without_venv_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match=r"apt-get install python3\.\d+-venv"):
        bootstrap.main()
    assert not (project / ".venv").exists()


def test_a_full_disk_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "NEEDED_DISK", 10**18)
    with pytest.raises(SystemExit, match="nearly full"):
        bootstrap.main()
    assert not (project / ".venv").exists()


def test_the_second_run_does_nothing_and_a_changed_list_is_installed(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[Path]] = []
    monkeypatch.setattr(bootstrap, "install", asked.append)
    linked: list[tuple[str, ...]] = []
    monkeypatch.setattr(bootstrap, "pip", lambda *words: linked.append(words))
    bootstrap.main()
    assert "Making the environment" in capfd.readouterr().out
    bootstrap.main()
    assert capfd.readouterr().out == ""
    (project / "requirements.txt").write_text("# changed\n")
    bootstrap.main()
    assert "Making" not in capfd.readouterr().out
    assert len(asked) == 2
    assert not linked, "the packages of an image are installed before the project is there"

    (project / "penstock").mkdir()
    (project / "penstock" / "__init__.py").touch()
    (project / "pyproject.toml").touch()
    bootstrap.main()
    bootstrap.main()
    assert [words[-2:] for words in linked] == [("--editable", str(project))]


@pytest.mark.long
def test_packages_and_tools_are_installed_by_one_call(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Path]] = []
    monkeypatch.setattr(bootstrap, "install", asked.append)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--tests"])
    bootstrap.main()
    bootstrap.main()
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    bootstrap.main()
    assert asked == [[project / "requirements.txt", project / "tests" / "requirements.txt"]]


@pytest.mark.long
def test_an_interrupted_environment_is_made_anew(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").write_text("cut off")
    monkeypatch.setattr(bootstrap, "install", lambda _: None)
    bootstrap.main()
    assert bootstrap.usable()
    assert "Making the environment in .venv anew, as its Python does not run" in capfd.readouterr().out


@pytest.mark.long
def test_an_environment_without_pip_gets_it(project: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / ".venv")], check=True)
    assert bootstrap.usable()
    subprocess.run([str(bootstrap.python()), "-c", "import pip"], check=True)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, []),
        (
            {"PIP_INDEX_URL": "https://mirror.example/simple", "PIP_TIMEOUT": "9"},
            ["--default-index=https://mirror.example/simple"],
        ),
        ({"PIP_FIND_LINKS": "/one /two"}, ["--find-links=/one", "--find-links=/two"]),
        ({"PIP_CERT": "/certificates.pem"}, ["/certificates.pem"]),
        ({"PIP_EXTRA_INDEX_URL": "https://mirror.example/simple"}, None),
    ],
    ids=["", "a mirror", "folders", "certificates", "a setting that uv has not"],
)
def test_uv_installs_from_where_pip_would(
    project: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], options: list[str] | None
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_") or name == "SSL_CERT_FILE"]:
        monkeypatch.delenv(name)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, **settings}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bootstrap, "python", lambda: Path(sys.executable))
    calls: list[tuple[list[str], dict[str, str]]] = []

    def run(_title: str, _log: str, _number: int, command: list[str], env: dict[str, str] | None = None) -> int:
        calls.append((command, env or {}))
        return 0

    monkeypatch.setattr(bootstrap, "run", run)
    assert bootstrap.uv("Installing", ["--no-deps"]) == (options is not None)
    if options is None:
        assert not calls
    else:
        (fetch, _), (command, env) = calls
        assert fetch[-2:] == [str(project / ".venv" / "uv"), bootstrap.UV]
        given = [word for word in command if "=" in word] + [env[n] for n in ("SSL_CERT_FILE",) if n in env]
        assert given == options


def test_what_uv_cannot_install_pip_does(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_pip: list[str] = []
    (project / "requirements.txt").write_text("pip\n")
    monkeypatch.setattr(bootstrap, "pip_settings", dict)
    monkeypatch.setattr(bootstrap, "run", lambda *_: 1)
    monkeypatch.setattr(bootstrap, "pip", lambda title, *_: by_pip.append(title))
    bootstrap.install([project / "requirements.txt"])
    assert by_pip == ["Installing 1 packages"]


@pytest.fixture
def _pip_of_the_tests(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed is of the Python that runs the tests, so nothing is."""
    (project / ".venv").mkdir()
    monkeypatch.setattr(bootstrap, "python", lambda: Path(sys.executable))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.mark.usefixtures("_pip_of_the_tests")
def test_pip_is_two_lines_and_a_log(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "requirements.txt").write_text("# What is there.\npip\n\n")
    bootstrap.install([project / "requirements.txt"])
    begun, ended = capfd.readouterr().out.splitlines()
    assert begun == "Installing 1 packages; log: .venv/packages.log"
    assert re.fullmatch(r"Installing 1 packages: done in \d+ s", ended)
    assert "Requirement already satisfied: pip" in (project / ".venv" / "packages.log").read_text()


@pytest.mark.usefixtures("_pip_of_the_tests")
def test_the_end_of_pips_log_is_shown_when_it_fails(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "requirements.txt").write_text("not-there-at-all==1.0\n")
    with pytest.raises(SystemExit) as failed:
        bootstrap.install([project / "requirements.txt"])
    assert re.search(r": failed in \d+ s\n$", capfd.readouterr().out)
    first, *lines, hint = str(failed.value).splitlines()
    assert first == "error: pip could not install the packages; the last lines of .venv/packages.log:"
    assert "No matching distribution found for not-there-at-all==1.0" in lines[-1]
    assert hint.startswith("  hint: ")


def test_on_a_terminal_pip_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "pip.py").write_text(
        "import time\n"
        "print('Looking in indexes: https://somebody@packages.of.this.machine/simple', flush=True)\n"
        "for name in ('one', 'two', 'two'):\n"
        "    print(f'Collecting {name}==1.0 (from -r requirements.txt)', flush=True)\n"
        "time.sleep(2)\n"
    )
    script = (
        "import sys; from pathlib import Path; from penstock import bootstrap\n"
        f"bootstrap.ENVIRONMENT = Path({str(tmp_path)!r}); bootstrap.python = lambda: Path(sys.executable)\n"
        "bootstrap.pip('Installing 3 packages', 'packages.log', 3)\n"
    )
    reader, terminal = pty.openpty()
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "slow"), str(settings.PROJECT)]),
        "COLUMNS": "60",
    }
    with subprocess.Popen([sys.executable, "-c", script], stdout=terminal, stderr=terminal, env=env) as process:
        process.wait(60)
    os.close(terminal)
    shown = os.read(reader, 100_000).decode()
    os.close(reader)
    assert process.returncode == 0, shown
    assert shown.count("\n") == 1, "one line takes the place of the one before it"
    lines = [line for line in shown.replace("\n", "").split("\r") if line]
    assert {len(line) for line in lines} == {59}
    assert re.match(r"Installing 3 packages: 2 fetched, \d+ s; log: ", lines[2])
    assert re.match(r"Installing 3 packages: done in \d+ s *$", lines[-1])
    assert "packages.of.this.machine" not in shown


def test_progress_is_what_is_fetched_then_what_is_installed(project: Path) -> None:
    log = project / "packages.log"
    log.write_text(
        "Collecting a.b==1 (from -r x)\n  Downloading c-1.whl\nRequirement already satisfied: d>=2 in /here\n"
    )
    assert bootstrap.progress(log, 3) == "2 fetched, "
    assert bootstrap.progress(log, 0) == ""
    with log.open("a") as more:
        more.write("Installing collected packages: a.b, d\n")
    folder = project / ".venv" / "lib" / "python3.12" / "site-packages"
    for name in ("a", "pip"):
        (folder / f"{name}-1.dist-info").mkdir(parents=True)
    assert bootstrap.progress(log, 3) == "2 installed, "


def test_an_interrupted_run_says_that_it_goes_on(project: Path) -> None:
    copy = project / "penstock" / "bootstrap.py"
    copy.parent.mkdir()
    shutil.copy(bootstrap.__file__, copy)
    # A shell ignores SIGINT for what it runs in the background.
    handled = "import runpy, shutil, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    interrupt = "shutil.disk_usage = lambda _: signal.raise_signal(signal.SIGINT)"
    run = f"{handled}; {interrupt}; runpy.run_path({str(copy)!r}, run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "\ninterrupted; the same command goes on where it stopped\n"
