"""A store of the statement language has a part in each of the modules that docs/architecture.md lists."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

import pytest

from penstock.model.sink import Store
from penstock.model.sql.sink_clauses import TARGETS
from penstock.model.sql.sink_file import parse
from penstock.settings import settings
from penstock.sinks.core import connections
from penstock.sinks.core.document import DocumentOutput
from penstock.sinks.core.stream import OUTPUT_CLASSES

STORES = get_args(Store)


@pytest.mark.parametrize(
    "parts", [TARGETS, OUTPUT_CLASSES, connections.EXAMPLES], ids=["TARGETS", "OUTPUT_CLASSES", "EXAMPLES"]
)
def test_every_store_has_a_part(parts: dict[str, str]) -> None:
    assert sorted(parts) == sorted(STORES)


@pytest.mark.parametrize("store", STORES)
def test_a_target_is_read_as_the_hint_for_it_says(store: str, tmp_path: Path) -> None:
    target = re.sub("[<>]", "", TARGETS[store].partition(",")[0])
    sink = parse(f"UPSERT INTO {target} READ t AS TEXT AS SELECT text FROM t", tmp_path / "s.sql")
    assert ".".join((sink.store, *sink.target)) == target
    assert len(sink.target) == TARGETS[store].partition(",")[0].count("<")


@pytest.mark.parametrize("store", STORES)
def test_the_output_class_of_a_store_names_what_opens_and_describes_it(store: str) -> None:
    output = resolve_name(OUTPUT_CLASSES[store])
    assert issubclass(output, DocumentOutput)
    assert output.connection == store
    assert callable(resolve_name(output.writer))
    assert callable(resolve_name(output.store_schema))


@pytest.mark.parametrize("store", STORES)
def test_every_store_has_a_setting_for_its_url(store: str) -> None:
    assert hasattr(settings(), f"{store}_url")
