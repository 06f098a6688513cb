"""The order in which a case sends its records, and what it says of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.streams import Input, Stateless, Stream, Table, Topic, TopicOutput
from penstock.testing import case_run
from penstock.testing.case_file import StreamCase
from penstock.testing.case_run import CaseFailure, CaseRun
from penstock.testing.registry_values import RegistryTopics
from penstock.testing.topics import Record

SALES = Input(Topic("sales"), schema="shop STRING, at BIGINT", event_time="timestamp_millis(at)")
STREAM = Stream(
    "named", "tests",
    {"sales": SALES, "shops": Table(Topic("shops", compacted=True), "name STRING")},
    lambda sales, shops: sales.join(shops, sales.shop == shops.key).select("shop", "name"),
    TopicOutput(Topic("named"), key="shop", value="name"), Stateless(),
)  # fmt: skip


def case_of(step: dict[str, Any]) -> tuple[StreamCase, CaseRun]:
    case = StreamCase.model_validate({"streams": ["named"], "steps": [step]})
    case.steps[0]._line = 1
    spark: Any = None
    return case, CaseRun(case, [STREAM], RegistryTopics({}), spark, "", Path())


def test_records_of_tables_arrive_before_a_batch_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that reads an input before a record of a table is there leaves this record to the next step."""
    sent: list[list[str]] = []

    def send(_: str, records: Sequence[Record]) -> None:
        sent.append([record.topic for record in records])

    monkeypatch.setattr(case_run, "send", send)
    records = [{"topic": topic, "value": None} for topic in ("sales", "shops", "sales", "shops")]
    case, run = case_of({"send": records})
    run._send(case.steps[0])
    assert sent == [["shops", "shops"], ["sales", "sales"]]
    assert [record.topic for record in run._result.sent] == ["sales", "shops", "sales", "shops"]


def test_dead_letters_that_are_only_counted_are_expected_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_run, "read", lambda *_: [])
    case, run = case_of({"dead_counted": 2})
    run._check(case.steps[0], "one", late=0, dead=2)
    with pytest.raises(CaseFailure, match="one: 1 dead letters were counted, not 2"):
        run._check(case.steps[0], "one", late=0, dead=1)
