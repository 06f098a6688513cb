"""The golden statements of streams: what each declares, or why it is refused, whole (`tests/golden/streams.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import SqlTransform, sql_stream
from penstock.model.stream import Stream
from penstock.settings import PROJECT
from penstock.testing.strict_yaml import YamlDocument

GOLDEN = YamlDocument(PROJECT / "tests" / "golden" / "streams.yaml").data
# The transform is a function; where a declaration stands is a part of errors.
LEFT_OUT = ("transform", "location")
# Words of Python that say nothing to who writes SQL. A topic may declare its schema in jobs/ alone.
PYTHON = re.compile(
    r"Emit[FC]|StreamJoin|Stateless|KeyedState|Timers|timedelta|Fold\(|Input\(|Table\(|\bF\.|\btransform\b|\b\w+="
)


def declared(text: str) -> Stream:
    return sql_stream(parse(text, Path("given.sql")), {})


def described(value: Any) -> Any:
    """A declaration as data: the class, and the fields that differ from their defaults."""
    if is_dataclass(value):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.init and one.name not in LEFT_OUT}
        defaults = {one.name: _default(one) for one in fields(value)}
        given = {name: described(v) for name, v in own.items() if v != defaults[name]}
        if isinstance(value, Stream) and isinstance(value.transform, SqlTransform) and value.transform.declared.folds:
            given["folds"] = described(value.transform.declared.folds)
        return {type(value).__name__: given}
    if isinstance(value, Mapping):
        return {name: described(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [described(one) for one in value]
    return str(value) if isinstance(value, timedelta) else value


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def test_there_are_forty_of_each() -> None:
    for kind in ("accepted", "refused"):
        assert len({case["sql"] for case in GOLDEN[kind]}) == len(GOLDEN[kind]) >= 40


@pytest.mark.parametrize("case", GOLDEN["accepted"], ids=lambda case: " ".join(case["sql"].split())[:100])
def test_a_statement_declares_a_stream(case: dict[str, Any]) -> None:
    assert described(declared(case["sql"])) == case["declares"]


@pytest.mark.parametrize("case", GOLDEN["refused"], ids=lambda case: " ".join(case["sql"].split())[:100])
def test_a_statement_is_refused_with_its_place(case: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as e:
        declared(case["sql"])
    assert str(e.value) == case["error"]
    assert re.match(r"given\.sql:\d+:\d+: ", case["error"])
    assert not PYTHON.search(case["error"].replace("Topic(..., schema=...)", ""))
