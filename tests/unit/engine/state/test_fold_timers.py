"""Keys of a fold that are due: found among all versions of a state, folded without a record, once."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.streams import Fold
from tests.support.fold_runner import Folding, cut
from tests.support.random_cases import FULL, seeds

AFTER = 100
# Silent for so long is told once, and forgotten where the last word was `bye`.
SILENT = Fold(
    name="silent",
    key=("who",),
    state_schema="latest BIGINT, word STRING, due BIGINT",
    update_sql=f"""
WITH newest AS (
  SELECT who, max(timestamp) AS latest, arg_max(word, timestamp) AS word FROM records GROUP BY who
), now AS (
  SELECT who, greatest(n.latest, s.latest) AS latest, coalesce(n.word, s.word) AS word,
    n.latest IS NULL AND s.due IS NOT NULL AS told
  FROM newest n FULL JOIN state s USING (who)
)
SELECT *, CASE WHEN NOT told THEN latest + {AFTER} END AS due FROM now WHERE NOT (told AND word = 'bye')""",
    emit_sql="SELECT who, latest FROM state WHERE due <= getvariable('time') AND who NOT IN (SELECT who FROM records)",
    output_schema="who STRING, latest BIGINT",
    timer_field="due",
)
ROW = "who STRING, word STRING, timestamp BIGINT"


def row(who: str, timestamp: int, word: str = "") -> dict[str, Any]:
    return {"who": who, "word": word, "timestamp": timestamp}


def test_a_key_is_due_once_and_again_when_it_comes_back(tmp_path: Path) -> None:
    silent = Folding(SILENT, ROW, tmp_path)
    assert silent.take([row("ann", 1000), row("bob", 1050, "bye")]) == []
    assert silent.take([], clock=1099) == []
    assert silent.take([], clock=1100) == []
    # The watermark of a batch is what the batches before it have seen.
    assert silent.take([], again=True, clock=1200) == [{"who": "ann", "latest": 1000}]
    assert silent.take([], again=True, clock=1200) == [{"who": "bob", "latest": 1050}]
    assert silent.take([], clock=5000) == []
    assert silent.kept() == 1
    assert silent.take([row("ann", 5000)]) == []
    assert silent.take([], clock=5100) == []
    assert silent.take([row("bob", 5099)]) == [{"who": "ann", "latest": 5000}]


@pytest.mark.parametrize("seed", seeds(3, 6))
def test_random_histories(seed: int, tmp_path: Path) -> None:
    """Whatever batches, merges of files, keys of one hash and repeated batches do: told is who was silent, once."""
    chance = random.Random(seed)
    size = 400 if FULL else 200
    rows = [row(f"k{chance.randrange(40)}", 10_000 + 3 * n, chance.choice(["", "bye"])) for n in range(size)]
    silent = Folding(SILENT, ROW, tmp_path, hashes=chance.choice([1, 2, 2**62]))
    latest: dict[str, int] = {}
    told: set[tuple[str, int]] = set()
    for batch in cut(rows, [chance.choice([1, 2, 3, 10, 25]) for _ in range(5)]):
        watermark, here = silent.watermark, {r["who"] for r in batch}
        due = {(w, t) for w, t in latest.items() if w not in here and t + AFTER <= watermark and (w, t) not in told}
        found = {(r["who"], r["latest"]) for r in silent.take(batch, again=chance.random() < 0.2)}
        assert found == due
        told |= found
        latest |= {r["who"]: r["timestamp"] for r in batch}
    assert len(told) > 20


def test_what_is_due_is_a_field_of_the_state() -> None:
    for field in ("word", "nothing"):
        with pytest.raises(DeclarationError, match="has a timer that is no field of its state"):
            replace(SILENT, timer_field=field)


def test_a_field_that_an_older_state_lacks_is_null(tmp_path: Path) -> None:
    """Of a release that keeps more, whose state was accepted."""
    older = Folding(SILENT, ROW, tmp_path, hashes=2)
    for n in range(6):
        older.take([row(f"k{n}", 1000 + n, "x")])
    wider = Folding(
        replace(
            SILENT,
            state_schema="latest BIGINT, count BIGINT, word STRING, due BIGINT",
            update_sql=f"SELECT f.*, s.count FROM ({SILENT.update_sql}) f LEFT JOIN state s USING (who)",
            emit_sql="SELECT who, count AS latest FROM folded",
        ),
        ROW,
        tmp_path,
        hashes=2,
    )
    wider.batch, wider.latest, wider.manifest = older.batch, older.latest, older.manifest
    assert wider.take([row("k1", 1050)]) == [{"who": "k1", "latest": None}]
    assert len(wider.take([], clock=5000)) == 0
    assert {r["who"] for r in wider.take([])} == {f"k{n}" for n in range(6)}
    assert wider.take([row("k2", 5000)]) == [{"who": "k2", "latest": None}]
