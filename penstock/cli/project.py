"""`penstock init` and `penstock test`: a project of one's own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import clear_errors, console
from penstock.devstack import new_project
from penstock.errors import MissingExtra
from penstock.settings import settings


def init(folder: Annotated[Path, typer.Argument(help="The folder of the project; its name is the project's.")]) -> None:
    """Lay out a project with one stream, one capture, one sink and their tests."""
    out = console()
    with clear_errors():
        files = new_project.create(folder)
    out.print(f"Created the project {folder.absolute().name} in {folder}:")
    for path in files:
        out.print(f"  {path}")
    out.print("Next:")
    for command, meaning in (
        (f"cd {shlex.quote(str(folder))}", ""),
        ("pip install -r requirements.txt", "the library with the extras of the project"),
        ("penstock up", "start its servers and streams on this machine; the first start downloads them"),
        ("penstock test", "run its tests"),
        ("penstock topics read shops", "what the capture has written"),
        ("penstock down", "stop everything, keep the data"),
    ):
        out.print(f"  {command:<34}{meaning}".rstrip())


def test(
    context: typer.Context,
) -> None:
    """Run the tests of the project by pytest.

    Cases of streams in tests/streams/*.yaml are among them. They have a home of their own. Further arguments are
    pytest's.
    """
    with clear_errors():
        if find_spec("pytest") is None:
            hint = "pip install 'penstock[test]'"
            raise MissingExtra("the Python package pytest is not installed", hint=hint)
        s = settings()
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as home:
        own = {"PENSTOCK_HOME": home, "PENSTOCK_PROJECT": str(s.project), "PYTHONPATH": s.python_path}
        command = [sys.executable, "-m", "pytest", "-p", "penstock.testing.plugin", *context.args]
        done = subprocess.run(command, cwd=s.project, env={**os.environ, **own}, check=False)
    raise typer.Exit(done.returncode)
