"""The folds of presence on random histories, batch by batch, against rules that know all of the past."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pytest

from jobs.presence import WALK_INS, archive, walk_ins
from jobs.presence.simulator.crowd import UNKNOWN, Business, Crowd, plan
from penstock.codec.arrow_types import arrow_type
from penstock.engine.state import fold_query
from penstock.model.fold import Fold
from penstock.model.output_mode import millis
from tests.support import presence_model as model
from tests.support.fold_runner import Folding, cut
from tests.support.presence_records import CONTACT, COUNTED, NAMED, PROBE, ranked, strong
from tests.support.random_cases import seeds
from tests.support.sql_streams import project_fold

CONTACTS, COUNTS = project_fold("device-contacts"), project_fold("walk-in-counts")
LOOKUP = project_fold("enriched-walk-ins")
RETENTION = millis(WALK_INS.retention)
SEEDS = seeds(1, 8)
# Of small histories, each of which reaches few of the rules.
MORE = seeds(2, 24)
LATE = walk_ins.LATE
Pair = tuple[str, str]


def told(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((r["device"], r["business"], r["since"], r["timestamp"]) for r in rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_walk_ins_of_probes_in_order(seed: int, tmp_path: Path) -> None:
    history = model.histories(seed)
    chance = random.Random(seed)
    probes = sorted(strong(history), key=lambda p: p["timestamp"])
    visits = Folding(walk_ins.VISITS, PROBE, tmp_path, LATE, hashes=chance.choice([1, 2, 2**62]))
    sizes = [chance.choice([1, 2, 3, 10]) for _ in range(3)]
    found = [row for batch in cut(probes, sizes) for row in visits.take(batch, again=chance.random() < 0.2)]
    assert told(found) == told(model.walk_ins(history.probes, history.thresholds))


@pytest.mark.parametrize("seed", SEEDS)
def test_walk_ins_of_late_probes(seed: int, tmp_path: Path) -> None:
    """After each batch what was seen by then decides; what was told is not told again."""
    history = model.histories(seed)
    chance = random.Random(seed)
    probes = sorted(strong(history), key=lambda p: p["timestamp"] + chance.choice([0, 0, LATE // 2, LATE]))
    visits = Folding(walk_ins.VISITS, PROBE, tmp_path, LATE)
    seen: dict[Pair, set[int]] = {}
    before: dict[Pair, list[int]] = {}
    for batch in cut(probes, [chance.choice([1, 2, 5]) for _ in range(3)]):
        for p in batch:
            if p["timestamp"] > visits.watermark:
                seen.setdefault((p["device"], p["business"]), set()).add(p["timestamp"])
        wanted = []
        for (device, business), times in seen.items():
            pair = before.setdefault((device, business), [])
            for span in model._presences(sorted(times), model.AWAY):
                given = [{"device": device, "business": business, "signal": 0, "timestamp": t} for t in span]
                if not any(span[0] <= t <= span[-1] for t in pair):
                    wanted += (fresh := model.walk_ins(given, {business: 0}))
                    pair += [w["timestamp"] for w in fresh]
        assert told(visits.take(batch)) == told(wanted)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_walk_ins_of_a_crowd(seed: int, tmp_path: Path) -> None:
    """So many keys at once that rows of one key and time lie in any order."""
    shops = [Business(str(n + 1), -75) for n in range(10)]
    made = plan(Crowd(2000, shops, 150.0, 1_795_513_360_000, 360_000, seed=seed, step=15_000))
    visits = Folding(walk_ins.VISITS, PROBE, tmp_path, LATE)
    found = []
    for step in made.steps():
        probes = [orjson.loads(value) for _, value in step.probes]
        found += visits.take([p for p in probes if p["business"] != UNKNOWN and p["signal"] >= -75])
    assert told(found) == sorted(made.visits)


def test_visits_that_ended_leave_the_state(tmp_path: Path) -> None:
    visits = Folding(walk_ins.VISITS, PROBE, tmp_path, LATE)
    for number in range(30):
        visits.take([{"device": f"d{number}", "business": "1", "timestamp": 10**12 + number * walk_ins.AWAY // 4}])
    assert visits.kept() < 20


def test_state_expires_when_no_more_record_can_change_it() -> None:
    """To the millisecond, of a key that no record has touched since."""
    now = 10**12

    def left(fold: Fold, states: list[dict[str, Any]]) -> list[str]:
        kept = pa.schema([pa.field(f.name, arrow_type(f.type)) for f in fold.state_fields])
        rows = pa.Table.from_pylist(states, pa.schema([pa.field("device", pa.string()), *kept]))
        return [str(one["device"]) for one in fold_query.drop_expired(fold, rows, now).to_pylist()]

    spans = [
        {"device": d, "spans": [{"first_seen": 0, "last_seen": now - walk_ins.AWAY - n}]} for n, d in enumerate("ab")
    ]
    assert left(walk_ins.VISITS, spans) == ["a"]
    waits = [{"device": d, "waiting": [{"walked_in_at": now - model.WAIT - n}]} for n, d in enumerate("ab")]
    known = {"device": "c", "contacts": [{"since": 0, "contact": "x"}]}
    assert left(LOOKUP, [*waits, known]) == ["a", "c"]
    assert left(CONTACTS, [{"device": "a", "removed": 0}]) == ["a"]


@pytest.mark.parametrize("seed", MORE)
def test_contacts_in_any_order(seed: int, tmp_path: Path) -> None:
    history = model.histories(seed)
    chance = random.Random(seed)
    contacts = Folding(CONTACTS, CONTACT, tmp_path, hashes=chance.choice([1, 2**62]))
    last: dict[str, dict[str, Any]] = {}
    for batch in cut(ranked(history.events), [chance.choice([1, 2, 3, 10]) for _ in range(3)]):
        last |= {row["device"]: row for row in contacts.take(batch, again=chance.random() < 0.2)}
    assert last == model.device_contacts(history.events)


@pytest.mark.parametrize(("type_", "businesses"), [("login", ["b"]), ("change", ["b"]), ("removal", [])])
def test_a_device_of_the_crm_has_the_business_of_its_latest_login(
    tmp_path: Path, type_: str, businesses: list[str]
) -> None:
    contact = None if type_ == "removal" else "ann"
    document = {"device": "d", "contact": contact, "business": "b", "type": type_, "timestamp": 1_700_000_000_000}
    assert archive.CONTACTS.rows
    with duckdb.connect() as connection:
        connection.register("records", pa.Table.from_pylist([document]))
        events = connection.sql(archive.CONTACTS.rows.query).to_arrow_table().to_pylist()
    [row] = Folding(CONTACTS, CONTACT, tmp_path).take(ranked(events))
    assert (row["contact"], row["businesses"]) == (contact, businesses)


@pytest.mark.parametrize("seed", MORE)
def test_walk_ins_get_the_contact_of_their_time(seed: int, tmp_path: Path) -> None:
    """Contacts as the stream of contacts tells them, walk-ins between them in any order that the wait allows."""
    history = model.histories(seed)
    chance = random.Random(seed)
    walks = model.walk_ins(history.probes, history.thresholds)
    events = sorted(history.events, key=lambda e: e["timestamp"])
    contacts = Folding(CONTACTS, CONTACT, tmp_path / "contacts")
    known = [row for batch in cut(ranked(events), [3, 1, 5]) for row in contacts.take(batch)]
    arrivals: list[dict[str, Any]] = [{**row, "record_offset": n, "business": None} for n, row in enumerate(known)]
    arrivals += [dict(w) for w in walks]
    names = Folding(LOOKUP, NAMED, tmp_path / "names")
    found = []
    for batch in cut(sorted(arrivals, key=lambda r: r["timestamp"]), [chance.choice([1, 2, 7]) for _ in range(3)]):
        found += names.take(batch, again=chance.random() < 0.2)
    assert sorted(found, key=lambda r: (r["device"], r["business"], r["timestamp"])) == model.enriched(walks, events)


@pytest.mark.parametrize("seed", MORE)
def test_counts_in_any_order(seed: int, tmp_path: Path) -> None:
    history = model.histories(seed)
    chance = random.Random(seed)
    known = model.enriched(model.walk_ins(history.probes, history.thresholds), history.events)
    arrivals: list[dict[str, Any]] = [dict(w) for w in [*known, *known[:3]]]
    arrivals += [{**b, "timestamp": b["as_of"], "device": None} for b in [*history.bases, *history.bases[:2]]]
    chance.shuffle(arrivals)
    folding = Folding(COUNTS, COUNTED, tmp_path, hashes=chance.choice([1, 2, 2**62]))
    last: dict[Pair, int] = {}
    for batch in cut(arrivals, [chance.choice([1, 2, 5]) for _ in range(3)]):
        last |= {(r["business"], r["contact"]): r["count"] for r in folding.take(batch, again=chance.random() < 0.2)}
    assert last == model.counts(known, history.bases)


def contact_row(n: int, at: int, contact: str | None) -> dict[str, Any]:
    return {
        "device": "d",
        "business": None,
        "since": None,
        "timestamp": 10**12 + at,
        "contact": contact,
        "record_offset": n,
    }


def walk_row(at: int, business: str = "1") -> dict[str, Any]:
    return {"device": "d", "business": business, "since": 10**12 + at - 1, "timestamp": 10**12 + at}


def test_a_removal_of_the_same_millisecond_in_a_later_batch_leaves_no_contact(tmp_path: Path) -> None:
    names = Folding(LOOKUP, NAMED, tmp_path)
    names.take([contact_row(0, 0, "c-1")])
    names.take([contact_row(1, 0, None)])
    assert names.take([walk_row(5)]) == []
    [row] = names.take([contact_row(2, 9, "c-2")])
    assert row["contact"] == "c-2"


def test_a_walk_in_that_is_read_twice_is_emitted_once(tmp_path: Path) -> None:
    """Whoever is known of its time by then: counts would have it for both."""
    names = Folding(LOOKUP, NAMED, tmp_path)
    names.take([contact_row(0, 0, "c-1")])
    [row] = names.take([walk_row(5)])
    assert row["contact"] == "c-1"
    assert names.take([contact_row(1, 3, "c-2")]) == []
    assert names.take([walk_row(5)]) == []
    assert [r["contact"] for r in names.take([walk_row(5), walk_row(5, "2"), {**walk_row(6), "since": 1}])] == [
        "c-2",
        "c-2",
    ]
    # One that waited, named by what comes later with an older time.
    other = Folding(LOOKUP, NAMED, tmp_path / "other")
    assert other.take([walk_row(5)]) == []
    [row] = other.take([contact_row(0, 2, "c-1")])
    assert row["contact"] == "c-1"
    assert other.take([walk_row(5), contact_row(1, 4, "c-2")]) == []


def test_emitted_walk_ins_stay_in_the_state_for_the_retention_of_their_topic(tmp_path: Path) -> None:
    names = Folding(LOOKUP, NAMED, tmp_path)
    names.take([contact_row(0, 0, "c-1")])
    for n in range(12):
        assert len(names.take([walk_row(5 + n * RETENTION // 4)])) == 1
        assert names.take([walk_row(5 + n * RETENTION // 4)]) == []
    # The time of a batch is that of those before it.
    assert 4 <= len(names.state()[0]["enriched"]) <= 6
