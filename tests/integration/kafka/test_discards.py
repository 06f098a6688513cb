"""Dead letters that are discarded, and replays that run beside a discard."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.errors import LeaseLost
from penstock.kafka import discard as discarding
from penstock.kafka import replay as replays
from penstock.kafka.discard import discard
from penstock.kafka.limits import ProducerRecord
from penstock.kafka.replay import REPLAYS, Replay
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.topic import COMMITS
from penstock.testing import create
from tests.support.sales_letters import DEAD, SALES, letters, of_sales, put_aside, sent_again

pytestmark = pytest.mark.integration


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, SALES, DEAD, COMMITS)
    return fresh_broker.bootstrap


def test_what_is_discarded_is_not_sent_and_what_was_sent_is_not_discarded(bootstrap: str) -> None:
    put_aside(bootstrap, ("a", 0, 1, "one"), ("a", 0, 2, "two"), ("a", 0, 2, "two"), ("a", 0, 3, "three"))
    one, two, _, three = letters(bootstrap)
    assert [said.ended for said in discard([two], bootstrap, dry=True)] == [""]
    assert [said.ended for said in discard([two, two], bootstrap)] == [""]
    assert [said.ended for said in discard([two], bootstrap)] == ["discarded"]
    again = {str(said.letter.origin): said for said in sent_again(bootstrap)}
    assert (again["sales[0]@2"].discarded, again["sales[0]@2"].record) == (True, None)
    assert [place for _, _, place in of_sales(bootstrap)] == ["sales[0]@1", "sales[0]@3"]
    assert [said.ended for said in discard([one, two, three], bootstrap)] == ["replayed", "discarded", "replayed"]


def test_a_letter_is_discarded_for_its_stream_alone(bootstrap: str) -> None:
    """Another stream may have the same record; to send it again would give it to the first one too."""
    put_aside(bootstrap, ("a", 0, 1, "one"), ("b", 0, 1, "one"))
    [of_a] = [letter for letter in letters(bootstrap) if letter.stream == "a"]
    discard([of_a], bootstrap)
    results = sent_again(bootstrap, "ab")
    assert sorted((said.letter.stream, said.discarded) for said in results) == [("a", True), ("b", False)]
    [refused] = [said.refusal for said in results if not said.discarded]
    assert refused.startswith("it would be read twice by a")
    assert not [said.refusal for said in sent_again(bootstrap, "ab", ["a"]) if said.refusal]
    assert [value for _, value, _ in of_sales(bootstrap)] == ["one"]
    # A reset counts what was sent, and not what was discarded.
    assert replays.replayed_records(bootstrap) == {(of_a.origin, "")}


def test_a_discard_shuts_out_a_replay_that_still_runs(bootstrap: str) -> None:
    put_aside(bootstrap, ("a", 0, 1, "one"))
    running = [replays.letter_replays(bootstrap), replays.sink_replays("a", bootstrap)]
    assert [said.ended for said in discard(letters(bootstrap), bootstrap)] == [""]
    for writer in running:
        with pytest.raises(LeaseLost):
            writer.commit([ProducerRecord(REPLAYS.name, b"late", b"{}")], b"{}")
        writer.close()


@pytest.mark.parametrize("sink", ["", "a"], ids=["to the topic", "to a sink"])
def test_a_replay_that_begins_during_a_discard_shuts_it_out(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """It does not know yet what will be discarded, and may write it."""
    put_aside(bootstrap, ("a", 0, 1, "one"))
    found, begun, results = letters(bootstrap), list[TransactionalWriter](), discarding._results

    def during(*given: Any) -> list[discarding.Discard]:
        begun.append(replays.sink_replays(sink, bootstrap) if sink else replays.letter_replays(bootstrap))
        return results(*given)

    with monkeypatch.context() as patch:
        patch.setattr(discarding, "_results", during)
        with pytest.raises(LeaseLost, match="a replay began while dead letters were discarded"):
            discard(found, bootstrap)
    with closing(begun[0]) as running:
        running.commit([ProducerRecord(REPLAYS.name, b"it goes on", b"{}")], b"{}")
    assert replays.discard_key(found[0]) not in replays.read_replay_keys(bootstrap)
    assert [said.ended for said in discard(found, bootstrap)] == [""]


def test_a_replay_that_begins_while_discards_are_noted_waits_for_them(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_aside(bootstrap, ("a", 0, 1, "one"))
    commit, results = TransactionalWriter.commit, list[Replay]()
    replaying = threading.Thread(target=lambda: results.extend(sent_again(bootstrap)))

    def slow(self: TransactionalWriter, messages: Iterable[ProducerRecord], mark: bytes) -> int:
        count = commit(self, messages, mark)
        if self.name == "dead-letters" and not replaying.ident:
            replaying.start()
            replaying.join(2)
        return count

    monkeypatch.setattr(TransactionalWriter, "commit", slow)
    assert [said.ended for said in discard(letters(bootstrap), bootstrap)] == [""]
    replaying.join(60)
    assert [said.discarded for said in results] == [True]
