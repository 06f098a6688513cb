"""The environment is made once; what stands in the way is said at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock import bootstrap, settings

pytestmark = pytest.mark.processes


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


def test_a_wrong_python_is_refused_with_a_way_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11.*is Python 3\.9\.2\n  hint: install it"):
        bootstrap.main()
    assert not (project / ".venv").exists()


def test_a_python_without_venv_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match=r"apt-get install python3\.11-venv"):
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


def test_packages_and_tools_are_installed_by_one_call(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Path]] = []
    monkeypatch.setattr(bootstrap, "install", asked.append)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--tests"])
    bootstrap.main()
    bootstrap.main()
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    bootstrap.main()
    assert asked == [[project / "requirements.txt", project / "tests" / "requirements.txt"]]


def test_an_interrupted_environment_is_made_anew(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").write_text("cut off")
    monkeypatch.setattr(bootstrap, "install", lambda _: None)
    bootstrap.main()
    assert bootstrap.usable()
