"""The documents of single records, and what is said when they cannot be rendered."""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa
import pytest

from penstock.engine.operations import sink_preview
from penstock.engine.operations.sink_preview import RenderedRecords
from penstock.kafka.dead_letters import RecordLocation


def test_without_records_the_error_of_the_session_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise ConnectionRefusedError("the session has ended")

    monkeypatch.setattr(sink_preview, "_render", fail)
    nothing: Any = None
    with pytest.raises(ConnectionRefusedError):
        sink_preview.render_documents(nothing, nothing, [])


def test_the_rows_of_each_record_are_found_by_one_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay asks for each of many records."""
    looks = list[int]()

    def location(*, topic: str, partition: int, offset: int) -> RecordLocation:
        looks.append(offset)
        return RecordLocation(topic, partition, offset)

    monkeypatch.setattr(sink_preview, "RecordLocation", location)
    # Of a record there may be several, anywhere.
    offsets = [*range(50), 7]
    columns: dict[str, Any] = {"topic": ["t"] * 51, "partition": [0] * 51, "offset": offsets, "id": range(51)}
    rendered = RenderedRecords(pa.table({**columns, sink_preview.DOCUMENT_COLUMN: ["{}"] * 51}))
    ids = [rendered.of(RecordLocation("t", 0, offset))["id"].to_pylist() for offset in range(51)]
    assert ids == [[n] if n != 7 else [7, 50] for n in range(50)] + [[]]
    assert looks == offsets
    assert rendered.of(RecordLocation("t", 0, 7)).column_names == list(columns)
