"""What a record is, by the code and by the standard library: the same values, verdicts and reasons for any text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import cache
from typing import Any

import pytest
import sqlglot

from jobs.quality import validity
from jobs.quality.rules import EVERY, Rule
from penstock.codec.columnar import RecordDecoder
from penstock.model.schema import schema
from tests.support import json_model, json_texts
from tests.support.random_cases import FULL, tries
from tests.support.record_batches import batch, run

SCHEMAS = {
    "receipts": "environment STRING NOT NULL, metric STRING NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL",
    "flat": "name STRING NOT NULL, value DOUBLE NOT NULL, n INT, at BIGINT NOT NULL, ok BOOLEAN",
    "nullable": "s STRING, t TINYINT, h SMALLINT, i INT, b BIGINT, f FLOAT, d DOUBLE, o BOOLEAN",
    "nested": "id INT NOT NULL, a STRUCT<x: INT, y: STRUCT<z: STRING NOT NULL, w: DOUBLE>>, `e0` STRUCT<`k0`: INT>",
    "arrays": "a ARRAY<DOUBLE>, b ARRAY<BIGINT>, c ARRAY<INT>, d ARRAY<FLOAT>, e ARRAY<ARRAY<DOUBLE>>, f ARRAY<STRING>",
    "structs": "lines ARRAY<STRUCT<id: BIGINT NOT NULL, tags: ARRAY<STRING>, m: MAP<STRING, DOUBLE>>> NOT NULL, n INT",
    "maps": "m MAP<STRING, DOUBLE>, s MAP<STRING, STRING>, o MAP<STRING, STRUCT<a: INT, b: ARRAY<BIGINT>>>",
    "times": "at TIMESTAMP NOT NULL, d DATE, l ARRAY<TIMESTAMP>, ds MAP<STRING, DATE>, s STRUCT<t: TIMESTAMP>",
    "names": '`a/b` INT, `~0` STRING, `q"q` DOUBLE, `a.b` INT, `*` INT, `$` STRING, `é` INT NOT NULL, `0` INT NOT NULL',
    "digits": "`0` INT NOT NULL",
}
EACH = tries(500)
SEED = 20_260_101


@cache
def cases(name: str) -> list[tuple[bytes, dict[str, Any] | None, str]]:
    """Texts around a schema; the record of each, by the standard library, or None and the reason."""
    fields = schema(SCHEMAS[name], name)
    make = json_texts.Texts(fields, SEED)
    return [(text, *json_model.record(text, fields)) for text in (*make.hard(every_layout=FULL), *make(EACH))]


@pytest.mark.parametrize("name", SCHEMAS)
def test_code_and_standard_library_agree(name: str) -> None:
    fields = schema(SCHEMAS[name], name)
    expected: list[tuple[bytes | None, dict[str, Any] | None, str]] = [*cases(name)]
    expected.append((None, *json_model.record(None, fields)))
    rows = run(RecordDecoder(name, name, SCHEMAS[name], "now", None, True), batch([text for text, _, _ in expected]))
    good = 0
    for row, (given, wanted, why) in zip(rows, expected, strict=True):
        kept = row["_record"]
        shown = (given or b"")[:300]
        assert row["_bad"] == (wanted is None), f"{shown!r}: {kept['reason']!r}, not {why!r}"
        assert kept["value"] == given
        if wanted is None:
            assert kept["reason"].startswith(why), f"{shown!r}: {kept['reason']!r}, not {why!r}"
            continue
        good += 1
        assert kept["reason"] is None
        found = {f.name: row[f.name] for f in fields}
        assert comparable(found) == comparable(wanted), f"{shown!r}: {found}, not {wanted}"
    assert 0.05 < good / len(expected) < 0.85


def comparable(value: Any) -> Any:
    """Told apart: 0.0 and -0.0, 1 and 1.0 and true; NaN is NaN."""
    match value:
        case dict():
            return {name: comparable(one) for name, one in value.items()}
        case list():
            return [comparable(one) for one in value]
        case tuple():
            return tuple(comparable(one) for one in value)
        case datetime() | date():
            return value.isoformat()
    return repr(value)


def rules() -> dict[str, Rule]:
    true = sqlglot.exp.true()
    return {EVERY: Rule(EVERY, "json", "", true)} | {n: Rule(n, "json", ddl, true) for n, ddl in SCHEMAS.items()}


def statuses(given: Sequence[bytes | None], topic: str, of: Mapping[str, Rule]) -> list[str]:
    """The verdict of quality rules on each record: it has a second of its own."""
    reading = RecordDecoder("", "records", "", "timestamp", validity.combiner(of), False)
    rows = run(reading, batch(given, times=[n * 1_000_000 for n in range(len(given))], topics=[topic] * len(given)))
    assert {row["n"] for row in rows} == {1}
    return [row["status"] for row in sorted(rows, key=lambda row: row["event_time"])]


@pytest.mark.parametrize("name", SCHEMAS)
def test_quality_rules_mean_the_same_by_json_and_by_a_record(name: str) -> None:
    some = cases(name)[:: 1 if FULL else 3]
    values: list[bytes | None] = [text for text, _, _ in some]
    of = rules()
    by_default = ["valid" if json_model.is_json(v or b"") else "invalid" for v in values]
    by_rule = ["invalid" if record is None else "valid" for _, record, _ in some]
    assert_same(values, statuses(values, "any", of), by_default)
    assert_same(values, statuses(values, name, of), by_rule)
    assert statuses([None], name, of) == ["valid"]


def assert_same(values: Sequence[bytes | None], found: Sequence[str], wanted: Sequence[str]) -> None:
    differ = [(v, f) for v, f, w in zip(values, found, wanted, strict=True) if f != w]
    assert not differ, f"{len(differ)} of {len(values)}, such as {differ[:3]}"
