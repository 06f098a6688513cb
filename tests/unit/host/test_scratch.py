"""Folders of processes that are gone go with the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

MAKES = """
import sys
from pathlib import Path
from penstock.host.scratch import process_folder
print(process_folder(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def started(root: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    folder = Path(process.stdout.readline().strip())
    (folder / "shuffled").mkdir()
    (folder / "shuffled" / "rows").write_text("rows")
    return process, folder


@pytest.mark.parametrize("killed", [True, False])
def test_a_folder_lasts_as_long_as_its_process(tmp_path: Path, killed: bool) -> None:
    root = tmp_path / "home" / "tmp"
    first, one = started(root)
    second, two = started(root)
    assert one.is_dir()
    if killed:
        first.kill()
    first.communicate(timeout=60)
    assert one.is_dir() == killed
    third, three = started(root)
    assert not one.exists()
    assert {two, three} <= set(root.iterdir())
    for process in (second, third):
        process.communicate(timeout=60)
    assert [path.name for path in root.iterdir()] == [".lock"]
