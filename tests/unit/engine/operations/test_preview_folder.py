"""A preview leaves nothing on the disk, wherever its checkpoint is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engine.checkpoint.layout import PREVIEWS
from penstock.engine.operations import stream_preview
from penstock.engine.query.tables import tables_folder
from penstock.engine.state import fold
from tests.support.caches import clear_caches

ROOT = "s3a://bucket/checkpoints"


@pytest.fixture(autouse=True)
def _checkpoints_are_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", f"{ROOT}/")
    clear_caches()
    yield
    clear_caches()


def make_folders(root: str) -> None:
    """As a query does whose stream has tables and a fold."""
    for folder in (tables_folder(root, "sums"), Path(fold._cache(f"{root}/sums"))):
        folder.mkdir(parents=True)


def test_tables_and_state_of_a_preview_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of one that was killed, once it is a day old; not those of streams."""
    killed, removed = f"{int(time.time()) - 100_000}-x", list[str]()
    there = SimpleNamespace(list_names=lambda _: [killed], delete_folder=removed.append)
    monkeypatch.setattr(stream_preview, "HadoopFolder", lambda *_: there)
    make_folders(ROOT)
    kept = sorted(tmp_path.glob("*/*"))
    assert len(kept) == 2
    make_folders(f"{ROOT}/{PREVIEWS}/{killed}")
    spark: Any = None
    with stream_preview.preview_folder(spark) as root:
        assert sorted(tmp_path.glob("*/*")) == kept
        make_folders(root)
        assert len([*tmp_path.glob("*/*")]) == 4
    assert sorted(tmp_path.glob("*/*")) == kept
    assert removed == [f"{PREVIEWS}/{killed}", root.removeprefix(f"{ROOT}/")]
