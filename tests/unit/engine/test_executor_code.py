"""The code of a release on its way to executors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engine import executor_code
from penstock.settings import settings
from penstock.supervision import code_snapshot


def test_spark_finds_the_archive_in_a_folder_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "My Büro"
    content = {"jobs/shop/a.py": b""}
    digest = code_snapshot.digest_of(content)
    monkeypatch.setenv("PENSTOCK_HOME", str(home))
    monkeypatch.setenv("PENSTOCK_PROJECT", str(home / "releases" / digest))
    settings.cache_clear()
    sent: list[str] = []
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://a:1", addArchive=sent.append))
    try:
        code_snapshot.write_copy(digest, content)
        executor_code.send_code(spark)
        archive = code_snapshot.archive_copy(digest)
    finally:
        settings.cache_clear()
    assert sent == [f"{archive.as_uri()}#penstock-release"]
    assert "/My%20B%C3%BCro/" in sent[0]
