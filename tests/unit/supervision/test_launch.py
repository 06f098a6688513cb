"""The hash of what a driver is made of, while somebody works on the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.supervision import launch


def test_a_file_that_vanishes_meanwhile_is_not_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, gone = tmp_path / "a.py", tmp_path / "b.py"
    here.write_text("a = 1\n")
    monkeypatch.setattr(launch, "_spec", lambda: [here])
    alone = launch.spec_hash()
    monkeypatch.setattr(launch, "_spec", lambda: [here, gone])
    assert launch.spec_hash() == alone
    gone.write_text("b = 1\n")
    assert launch.spec_hash() != alone
