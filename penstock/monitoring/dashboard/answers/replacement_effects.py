"""What a change of a replacement would do, in sentences, before it is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from penstock.control import Control, ReplacementRow
from penstock.model.output_mode import EmitFinal, Stateless, StreamJoin
from penstock.monitoring.dashboard.answers.effects import named
from penstock.monitoring.dashboard.page_data import PageData
from penstock.monitoring.dashboard.replacements import replacement_view
from penstock.monitoring.humanize import duration
from penstock.supervision.release import version_before
from penstock.supervision.replacement_changes import ReplacementVerb, check_change

# At the cut, by the option `write`.
_WRITES = {
    "differing": "Rows that differ are written once more, where the stream updates rows.",
    "all": "All rows that were compared are written once more.",
    "none": "No row that was compared is written once more.",
}
# Output modes of which the cut writes no row that differs.
_ONCE = {mode.__name__ for mode in (EmitFinal, Stateless, StreamJoin)}


def replacement_effects(
    control: Control, data: PageData, row: ReplacementRow, verb: ReplacementVerb | Literal["back"]
) -> list[str]:
    """Of a change of a replacement. Sentences may have code between backticks.

    Raises:
        ReleaseRefused: Its state does not allow that, or there is no version to go back to.
    """
    check_change(row, verb)
    if verb == "back":
        version_before(control, row.app, row.name)
    return list(_OF_VERB[verb](data, row))


def _cut(data: PageData, row: ReplacementRow) -> Iterator[str]:
    if row.cut_requested_at is not None:
        yield "Nothing changes: the cut is requested already."
        return
    figures, view = row.figures, replacement_view(row, data.now)
    if lag := figures.get("lag"):
        left = "" if view.remaining_ms is None else f", which takes about {duration(view.remaining_ms)}"
        yield f"The cut begins when it has read the {lag:,} records that are left{left}."
    elif row.state != "following":
        yield f"The cut begins when it has caught up: it is {row.state}."
    if _store(data, row):
        refused = f" Its store refuses {figures['refused']:,} of them." if figures.get("refused") else ""
        yield f"The documents of a sink are built anew, and not compared.{refused}"
    else:
        yield _compared(figures)
        yield _written(data, row)
    others = [
        one.name for one in data.streams.values() if (one.app, one.desired) == (row.app, "on") and one.name != row.name
    ]
    if others:
        goes = "goes on in its next driver" if len(others) == 1 else "go on in its next driver"
        yield f"The cut is a release of `{row.app}`: {named(others)} {goes}, with offsets and state."


def _written(data: PageData, row: ReplacementRow) -> str:
    """Which rows the cut writes. What is declared may be newer than what is built, but hardly in its output mode."""
    declared = data.declared(row.name) or {}
    mode, write = str(declared.get("output_mode", "")).partition(":")[0], row.options.get("write", "differing")
    if write == "differing" and mode in _ONCE and not row.options.get("back"):
        return f"No row that was compared is written once more: of `{mode}` each row is written once."
    return _WRITES[write]


def _compared(figures: dict[str, Any]) -> str:
    if not figures.get("compared"):
        return "No row was compared yet."
    counts = {
        "equal": figures.get("equal") or 0,
        "different": figures.get("different"),
        "only in the new version": figures.get("only_new"),
        "only in the running version": figures.get("only_running"),
    }
    listed = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n is not None and (n or what == "equal"))
    return f"Of {figures['compared']:,} rows that were compared: {listed}."


def _store(data: PageData, row: ReplacementRow) -> str:
    """Where a sink writes; empty if it is none."""
    stream = data.streams.get(row.name)
    return "" if stream is None or stream.store is None else stream.store.get("destination", "its store")


def _cancel(_: PageData, row: ReplacementRow) -> Iterator[str]:
    records = row.figures.get("records") or 0
    yield f"Dropped: what the new version made of {records:,} records." if records else "It has read no record yet."
    yield f"`{row.name}` goes on as it is; its output has no gap."
    if row.cut_requested_at is not None:
        yield "The cut that is requested does not happen."


def _confirm(data: PageData, row: ReplacementRow) -> Iterator[str]:
    if row.cut_at is not None:
        yield f"The new version writes since {duration(max(0, data.now - row.cut_at))}."
    yield f"*Go back* to the code `{row.previous[:12]}` and its state is not possible any more."
    if store := _store(data, row):
        yield f"The documents of the version before are removed from `{store}`."


def _back(data: PageData, row: ReplacementRow) -> Iterator[str]:
    since = "" if row.cut_at is None else f", of {duration(max(0, data.now - row.cut_at))}"
    yield f"The code `{row.previous[:12]}` reads from its kept state what came since the cut{since}."
    yield f"Until it has caught up, the version of now goes on writing to the output of `{row.name}`."
    yield f"It is cut as soon as it has caught up; that is a release of `{row.app}`."
    yield "The files on the disk stay as they are, and `penstock up` releases them: put the earlier code there, too."


_OF_VERB = {"cut": _cut, "cancel": _cancel, "confirm": _confirm, "back": _back}
