"""What an operator changes of a replacement: cut, cancel or confirm it."""

from __future__ import annotations

from typing import Literal

from penstock.control import Actor, Control, ReplacementRow, ReplacementState
from penstock.errors import ReplacementRefused
from penstock.supervision.earlier_documents import forget_earlier_documents

ReplacementVerb = Literal["cut", "cancel", "confirm"]
# By verb, the past participle and the states in which a replacement must be.
BEFORE_CUT: tuple[ReplacementState, ...] = ("queued", "building", "following")
CHANGES: dict[ReplacementVerb | Literal["back"], tuple[str, tuple[ReplacementState, ...]]] = {
    "cut": ("cut", BEFORE_CUT),
    "cancel": ("cancelled", BEFORE_CUT),
    "confirm": ("confirmed", ("cut",)),
    "back": ("undone", ("cut",)),
}


def check_change(row: ReplacementRow, verb: ReplacementVerb | Literal["back"]) -> None:
    """Raises ReplacementRefused if the state of a replacement does not allow a change."""
    if row.state not in CHANGES[verb][1]:
        raise refused_change(row, verb)


def change_replacement(
    control: Control, row: ReplacementRow, verb: ReplacementVerb, actor: Actor, note: str = ""
) -> None:
    """Ask for the cut of a replacement as soon as it has caught up, end it before its cut, or confirm it.

    Args:
        control: The control database.
        row: The replacement.
        verb: `cut`, `cancel` or `confirm`.
        actor: Who does it.
        note: Recorded with it.

    Raises:
        ReplacementRefused: Its state does not allow that, and nothing was done; or it is confirmed, and the store of a
            sink did not remove the documents before.
    """
    if verb == "cut":
        done = control.request_cut(row.id, actor, note)
    elif verb == "cancel":
        why = f"cancelled by {actor.name}" + (f": {note}" if note else "")
        done = control.move_replacement(row.id, "cancelled", actor=actor, why=why)
    else:
        done = control.move_replacement(row.id, "confirmed", actor=actor, why=note)
    if not done:
        newest = control.replacement_of(row.name)
        # What follows a cut is decided first.
        raise refused_change(newest if newest and newest.is_open else control.replacement(row.id) or row, verb)
    if verb == "confirm":
        forget_earlier_documents(control, row)


def refused_change(row: ReplacementRow, verb: ReplacementVerb | Literal["back"]) -> ReplacementRefused:
    """The error of a change that the state of a replacement does not allow."""
    changed, states = CHANGES[verb]
    needed = " or ".join(filter(None, (", ".join(states[:-1]), states[-1])))
    return ReplacementRefused(
        f"the replacement of {row.name} cannot be {changed}",
        got=f"it is {row.state}" + (f": {_fault(row.why)}" if row.why else ""),
        hint=f"it must be {needed}; `penstock replacements show {row.name}`",
    )


def _fault(why: str) -> str:
    """What is wrong, of why a replacement has ended: what was got and what to do then are of another error."""
    return why.partition("; hint: ")[0].partition("; got: ")[0]
