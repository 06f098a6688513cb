"""What one version of a schema wrote is read by another with equal values: by tables, views and backfills, and if a
capture or a backfill wrote it. Spark's side is in tests/integration/engine/query/test_schema_evolution.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.arrow_types import arrow_type
from penstock.codec.formats import value_encoder
from tests.support.decoded_values import WRITER_ID, read_by_table
from tests.support.schema_evolution import CASES, EvolutionCase, as_dicts


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_values_are_equal_whoever_writes_and_reads(case: EvolutionCase) -> None:
    assert as_dicts(read_by_table(case.reader, case.writer, [case.written])) == [case.read]
    if case.as_written:
        [row] = read_by_table(case.as_written, case.writer, [case.written])
        columns: dict[str, pa.Array[Any]] = {
            one.name: pa.array([row[one.name]], arrow_type(one.type)) for one in case.as_written.fields
        }
        values, reasons = value_encoder(case.as_written, WRITER_ID).encode(columns)
        assert reasons == {}
        assert as_dicts(read_by_table(case.reader, case.writer, values)) == [case.read]
