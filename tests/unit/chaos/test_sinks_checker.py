"""The oracle of the sinks' kill loop, on records by hand, and what its checker sees."""

from __future__ import annotations

import json
from typing import Any

from tests.chaos.long.topics import Seen
from tests.chaos.sinks.checker import differences
from tests.chaos.sinks.oracle import Document, wanted

AT = 1_800_000_000_000
ITEM: Document = {
    "id": 1, "born": 5, "name": "a", "state": "s", "level": "7", "label": "x", "gone": False, "n": 1, "at": AT,
}  # fmt: skip
EVENT: Document = {
    "n": 3, "sensor": "s", "kind": "a", "note": None, "level": "7", "label": "x", "parts": ["p", "q"], "seq": 9,
    "last": False, "at": AT,
}  # fmt: skip
KEY = '{"id":1,"born":5}'


def seen(offset: int, value: Any, at: int = AT, partition: int = 0) -> Seen:
    text = None if value is None else value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return Seen(partition, offset, at, KEY.encode(), text, {})


def test_the_newest_state_is_that_of_the_latest_time_and_then_of_the_greater_offset() -> None:
    records = [seen(5, ITEM), seen(6, {**ITEM, "n": 2}), seen(7, {**ITEM, "n": 3, "at": AT - 1})]
    found = wanted(records, [])
    version = AT << 21 | 6
    assert found["search-now"].documents[KEY]["n"] == 2
    assert found["documents-now"].documents == {
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
    assert found["points-now"].documents == {("1", 5000): {**fields, **versions}}


def test_an_older_upsert_does_not_restore_a_deleted_row() -> None:
    records = [seen(5, ITEM), seen(6, None, AT + 5), seen(7, {**ITEM, "at": AT + 4})]
    found = wanted(records, [])
    assert found["search-now"].documents == found["documents-now"].documents == found["points-now"].documents == {}
    assert found["documents-marked"].documents == {KEY: {"deleted": True, "_v": AT + 5 << 21 | 6}}
    back = wanted([*records, seen(8, {**ITEM, "at": AT + 6})], [])
    assert len(back["points-now"].documents) == 1


def test_poison_of_one_store_is_taken_by_the_others_and_hides_nothing_older() -> None:
    poison = [{"state": "x" * 40_000}, {"label": "$set"}, {"level": "many"}]
    records = [seen(n, {**ITEM, "n": n, "at": AT + n, **more}) for n, more in enumerate([{}, *poison])]
    found = wanted([*records, seen(9, '{"id":'), seen(10, {**ITEM, "at": -1})], [])
    places = {name: sorted(offset for _, _, offset in one.refused) for name, one in found.items()}
    assert (places["search-now"], places["documents-now"], places["points-now"]) == ([10], [10], [3, 10])
    # Something newer may have hidden it.
    assert (found["search-now"].perhaps, found["documents-now"].perhaps) == ({("items", 0, 1)}, {("items", 0, 2)})
    assert found["points-now"].documents["1", 5000]["n"] == 2
    assert all(one.none == {("items", 0, 9)} for name, one in found.items() if name in ("search-now", "points-now"))


def test_an_event_makes_what_its_sinks_say() -> None:
    noise = {**EVENT, "n": 4, "kind": "noise", "seq": 8, "last": True}
    found = wanted([], [seen(0, EVENT), seen(1, noise), seen(2, {**EVENT, "n": 5, "seq": 7})])
    assert {key: one["kind"] for key, one in found["search-log"].documents.items()} == {3: "first", 5: "first"}
    assert {key: one["n"] for key, one in found["search-latest"].documents.items()} == {'["s","a"]': 3}
    assert found["documents-log"].documents.keys() == {(n, part) for n in (3, 4, 5) for part in "pq"}
    assert found["points-log"].documents["s", "a", 1_700_000_000_000_003] == {"level": 7, "n": 3}


def test_differences_are_reported() -> None:
    right: dict[Any, Document] = {1: {"n": 1}, 2: {"n": 2}, 3: {"n": 3}}
    assert list(differences("s", dict(right), right)) == []
    said = list(differences("s", {1: {"n": 1}, 2: {"n": 1}, 4: {"n": 4}}, right))
    assert [one.partition(",")[0] for one in said] == ["s: missing: 1", "s: too many: 1", "s: differs: 1"]
