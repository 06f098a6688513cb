"""The oracle of the sinks' kill loop, on records by hand, and what its checker sees."""

from __future__ import annotations

import json
from typing import Any

from tests.chaos.long.topics import CommittedRecord
from tests.chaos.sinks.checker import differences
from tests.chaos.sinks.oracle import Document, expected_stores

AT = 1_800_000_000_000
ITEM: Document = {
    "id": 1, "born": 5, "name": "a", "state": "s", "level": "7", "label": "x", "gone": False, "n": 1, "at": AT,
}  # fmt: skip
EVENT: Document = {
    "n": 3, "sensor": "s", "kind": "a", "note": None, "level": "7", "label": "x", "parts": ["p", "q"], "seq": 9,
    "last": False, "at": AT,
}  # fmt: skip
KEY = '{"id":1,"born":5}'


def committed(offset: int, value: Any, at: int = AT, partition: int = 0) -> CommittedRecord:
    text = None if value is None else value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return CommittedRecord(partition, offset, at, KEY.encode(), text, {})


def test_the_newest_state_is_that_of_the_latest_time_and_then_of_the_greater_offset() -> None:
    records = [committed(5, ITEM), committed(6, {**ITEM, "n": 2}), committed(7, {**ITEM, "n": 3, "at": AT - 1})]
    sinks = expected_stores(records, [])
    version = AT << 21 | 6
    assert sinks["search-now"].documents[KEY]["n"] == 2
    assert sinks["documents-now"].documents == {
        "[1,5]": {
            "id": 1,
            "born": 5,
            "name": "a",
            "level": "7",
            "n": 2,
            "gone": False,
            "labels": {"x": 2},
            "_v": version,
        }
    }
    fields = {"level": 7, "name": "a", "n": 2}
    versions = {f"_version.{name}": version for name in fields}
    assert sinks["points-now"].documents == {("1", 5000): {**fields, **versions}}


def test_an_older_upsert_does_not_restore_a_deleted_row() -> None:
    records = [committed(5, ITEM), committed(6, None, AT + 5), committed(7, {**ITEM, "at": AT + 4})]
    sinks = expected_stores(records, [])
    assert sinks["search-now"].documents == sinks["documents-now"].documents == sinks["points-now"].documents == {}
    assert sinks["documents-marked"].documents == {KEY: {"deleted": True, "_v": AT + 5 << 21 | 6}}
    back = expected_stores([*records, committed(8, {**ITEM, "at": AT + 6})], [])
    assert len(back["points-now"].documents) == 1


def test_poison_of_one_store_is_taken_by_the_others_and_hides_nothing_older() -> None:
    poison = [{"state": "x" * 40_000}, {"label": "$set"}, {"level": "many"}]
    records = [committed(n, {**ITEM, "n": n, "at": AT + n, **more}) for n, more in enumerate([{}, *poison])]
    sinks = expected_stores([*records, committed(9, '{"id":'), committed(10, {**ITEM, "at": -1})], [])
    places = {name: sorted(offset for _, _, offset in sink.refused) for name, sink in sinks.items()}
    assert (places["search-now"], places["documents-now"], places["points-now"]) == ([10], [10], [3, 10])
    # Something newer may have hidden it.
    assert (sinks["search-now"].maybe_refused, sinks["documents-now"].maybe_refused) == (
        {("items", 0, 1)},
        {("items", 0, 2)},
    )
    assert sinks["points-now"].documents["1", 5000]["n"] == 2
    assert all(
        sink.invalid == {("items", 0, 9)} for name, sink in sinks.items() if name in ("search-now", "points-now")
    )


def test_an_event_makes_what_its_sinks_say() -> None:
    noise = {**EVENT, "n": 4, "kind": "noise", "seq": 8, "last": True}
    sinks = expected_stores([], [committed(0, EVENT), committed(1, noise), committed(2, {**EVENT, "n": 5, "seq": 7})])
    assert {key: sink["kind"] for key, sink in sinks["search-log"].documents.items()} == {3: "first", 5: "first"}
    assert {key: sink["n"] for key, sink in sinks["search-latest"].documents.items()} == {'["s","a"]': 3}
    assert sinks["documents-log"].documents.keys() == {(n, part) for n in (3, 4, 5) for part in "pq"}
    assert sinks["points-log"].documents["s", "a", 1_700_000_000_000_003] == {"level": 7, "n": 3}


def test_differences_are_reported() -> None:
    right: dict[Any, Document] = {1: {"n": 1}, 2: {"n": 2}, 3: {"n": 3}}
    assert list(differences("s", dict(right), right)) == []
    text = list(differences("s", {1: {"n": 1}, 2: {"n": 1}, 4: {"n": 4}}, right))
    assert [sink.partition(",")[0] for sink in text] == ["s: missing: 1", "s: too many: 1", "s: differs: 1"]
