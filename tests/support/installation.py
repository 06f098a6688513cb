"""Penstock's wheel in an environment of its own, outside of the checkout."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from penstock.settings import PROJECT


class Installation:
    """An environment in which the wheel is installed with all extras, at the versions of requirements.txt.

    Args:
        folder: Where the environment lies, and what its programs take for the user's home.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        wheel = next(WheelBuilder(str(PROJECT)).build(directory=str(folder), versions=["standard"]))
        venv.create(folder / "env", with_pip=True)
        pins = str(PROJECT / "requirements.txt")
        # Without HOME pip would find neither its settings nor its cache.
        install = [str(self.bin / "pip"), "install", "--quiet", "--constraint", pins, f"{wheel}[all]"]
        subprocess.run(install, check=True, cwd=folder)

    @property
    def bin(self) -> Path:
        return self.folder / "env" / "bin"

    def run(self, program: str, *words: str, cwd: Path | None = None, **variables: str) -> str:
        """Run a program of the environment, without the variables of this process; returns its output."""
        env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            **variables,
        }
        command = [str(self.bin / program), *words]
        done = subprocess.run(command, cwd=cwd or self.folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout
