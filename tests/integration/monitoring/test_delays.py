"""How late rows are, as the meter reads it off a real broker."""

from __future__ import annotations

import json

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.monitoring.collect import delays
from penstock.monitoring.collect.delays import Delays
from penstock.streams import Topic
from penstock.testing import Record, create, send
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

END = 1_700_000_000_000


def alert(at: int, value: str | None = None) -> Record:
    """Written so many ms after its window's end."""
    return Record("alerts", "1", value or json.dumps({"window_end": END}), timestamp=END + at)


def test_what_is_written_from_now_on_is_counted(fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "LOOK_EVERY", 0.2)
    create(fresh_broker.bootstrap, Topic("alerts", partitions=2, config={"retention.ms": "-1"}))
    send(fresh_broker.bootstrap, [alert(100_000)])
    made = Delays(fresh_broker.bootstrap, {"alerts": "window_end", "later": "due"})

    def shown() -> dict[tuple[str, str], float]:
        samples = [s for family in made.histogram.collect() for s in family.samples]
        return {(s.labels["topic"], s.labels.get("le", s.name.rpartition("_")[2])): s.value for s in samples}

    def sent() -> bool:
        # Where it begins to read is known once it counts.
        send(fresh_broker.bootstrap, [alert(1700)])
        return shown().get(("alerts", "count"), 0) > 0

    made.start()
    try:
        wait_until(sent, every=0.5, what="a record is counted")
        known = shown()
        assert known["alerts", "1.5"] == 0
        assert known["alerts", "2.0"] == known["alerts", "+Inf"]
        send(fresh_broker.bootstrap, [alert(-5), alert(0, "nonsense"), alert(0, "{}"), alert(0, "[]")])
        wait_until(lambda: shown()["alerts", "0.1"] == 1, what="what was early counts as in time")
        create(fresh_broker.bootstrap, Topic("later", partitions=1, config={"retention.ms": "-1"}))
        send(fresh_broker.bootstrap, [Record("later", None, json.dumps({"due": END}), timestamp=END + 4000)])
        wait_until(lambda: shown().get(("later", "5.0")) == 1, what="a topic that is new is read from its beginning")
        assert shown()["later", "3.0"] == 0
    finally:
        made.stop()
