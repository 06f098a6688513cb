"""What changes of a replacement would do, as their dry runs say it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from penstock.control import Control, ReplacementState
from penstock.errors import ReplacementRefused
from penstock.monitoring.dashboard.answers.replacement_effects import replacement_effects
from penstock.supervision.replacement_changes import CHANGES
from penstock.supervision.replacement_options import replacement_options
from tests.unit.monitoring.overviews import NOW, row
from tests.unit.monitoring.page_moments import declared, moment
from tests.unit.monitoring.replacement_rows import FIGURES, ROW

HELD = replace(ROW, reported_at=NOW - 1_000)
OTHERS = [row(), row(name="summaries"), row(name="elsewhere", app="others")]


def effects(verb: Any, **changes: Any) -> list[str]:
    # Only to go back asks the database.
    return replacement_effects(None, moment(OTHERS), replace(HELD, **changes), verb)  # type: ignore[arg-type]


def test_a_cut_says_what_is_left_to_read_what_differs_and_who_else_restarts() -> None:
    assert effects("cut", figures={**FIGURES, "lag": 0}) == [
        "Of 12 rows that were compared: 10 equal, 1 different, 1 only in the new version.",
        "Rows that differ are written once more, where the stream updates rows.",
        "The cut is a release of `metrics`: `summaries` goes on in its next driver, with offsets and state.",
    ]
    left, compared, written, _ = effects(
        "cut", state="building", figures={**FIGURES, "compared": None}, options=replacement_options(write="none")
    )
    assert left == "The cut begins when it has read the 4,500 records that are left, which takes about 18 s."
    assert compared == "No row was compared yet."
    assert written == "No row that was compared is written once more."
    assert effects("cut", state="queued", figures={})[0] == "The cut begins when it has caught up: it is queued."
    assert effects("cut", cut_requested_at=NOW) == ["Nothing changes: the cut is requested already."]


@pytest.mark.parametrize(
    ("mode", "options", "written"),
    [
        ("EmitFinal: window 1 min", {}, "No row that was compared is written once more: of `EmitFinal` each row is"),
        ("Stateless", {}, "No row that was compared is written once more: of `Stateless` each row is"),
        ("EmitFinal: window 1 min", {"back": True}, "Rows that differ are written once more,"),
        ("EmitFinal: window 1 min", {"write": "all"}, "All rows that were compared are written once more."),
        ("EmitChanges: window 1 min", {}, "Rows that differ are written once more,"),
    ],
)
def test_a_cut_writes_no_row_again_where_each_is_written_once(mode: str, options: dict[str, Any], written: str) -> None:
    known = declared({"name": "bundles", "kind": "stream", "output_mode": mode})
    cut = replace(HELD, options={**HELD.options, **options})
    found = replacement_effects(None, moment(OTHERS, known), cut, "cut")  # type: ignore[arg-type]
    assert any(one.startswith(written) for one in found), found


def test_the_cut_of_a_sink_says_what_its_store_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    data = moment([row()])
    monkeypatch.setitem(data.streams["bundles"].__dict__, "store", {"destination": "mongodb:shop.orders"})
    cut = replace(HELD, figures={**FIGURES, "lag": 0, "refused": 3})
    assert replacement_effects(None, data, cut, "cut") == [  # type: ignore[arg-type]
        "The documents of a sink are built anew, and not compared. Its store refuses 3 of them."
    ]


def test_a_cancel_says_what_is_dropped() -> None:
    assert effects("cancel") == [
        "Dropped: what the new version made of 1,500 records.", "`bundles` goes on as it is; its output has no gap.",
    ]  # fmt: skip
    assert effects("cancel", figures={}, cut_requested_at=NOW)[::2] == [
        "It has read no record yet.", "The cut that is requested does not happen.",
    ]  # fmt: skip


def test_a_confirmation_says_what_cannot_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = replace(HELD, state="cut", cut_at=NOW - 90_000)
    said = [
        "The new version writes since 1 min 30 s.",
        "*Go back* to the code `old` and its state is not possible any more.",
    ]
    data = moment(OTHERS)
    assert replacement_effects(None, data, cut, "confirm") == said  # type: ignore[arg-type]
    monkeypatch.setitem(data.streams["bundles"].__dict__, "store", {"destination": "mongodb:shop.orders"})
    removed = "The documents of the version before are removed from `mongodb:shop.orders`."
    assert replacement_effects(None, data, cut, "confirm") == [*said, removed]  # type: ignore[arg-type]


def test_to_go_back_says_what_is_read_and_is_refused_as_the_change_itself(control: Control) -> None:
    cut = replace(HELD, state="cut", cut_at=NOW - 90_000)
    with pytest.raises(ReplacementRefused, match="stream bundles has no version to go back to"):
        replacement_effects(control, moment(OTHERS), cut, "back")


@pytest.mark.parametrize("verb", CHANGES)
def test_a_change_that_the_state_does_not_allow_is_refused(verb: Any) -> None:
    for state in set(get_args(ReplacementState)) - set(CHANGES[verb][1]):
        with pytest.raises(ReplacementRefused, match=f"it is {state}; hint: it must be (cut|queued, building)"):
            effects(verb, state=state)
