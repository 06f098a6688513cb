"""A file of a project that cannot be read fails only the cases that need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import DeclarationError
from penstock.testing.declared import pick, read_project

STREAM = """STREAM INTO {name} READ orders AS JSON (shop STRING, amount INT, at BIGINT NOT NULL)
  EVENT TIME timestamp_millis(at)
KEY (shop) APP {app} AS SELECT {columns} FROM orders
"""


def test_a_broken_file_fails_only_the_cases_that_need_it(tmp_path: Path) -> None:
    folder = tmp_path / "sql" / "streams"
    folder.mkdir(parents=True)
    (folder / "big.sql").write_text(STREAM.format(name="big", app="one", columns="shop, amount"))
    (folder / "bad.sql").write_text(STREAM.format(name="bad", app="two", columns="FROM FROM"))
    catalog, broken = read_project(tmp_path)
    [stream] = pick(["big"], catalog.streams, "stream", broken, "case")
    assert stream.name == "big"
    with pytest.raises(DeclarationError, match=r"case: .* no such stream; got: bad; hint: first correct .*bad\.sql:"):
        pick(["bad"], catalog.streams, "stream", broken, "case")
