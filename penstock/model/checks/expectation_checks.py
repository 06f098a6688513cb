"""What the expectations of a stream are refused for at once, with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.expectation import Expectation
from penstock.model.output import TopicOutput
from penstock.model.output_mode import EmitChanges, KeyedState

if TYPE_CHECKING:
    from penstock.model.stream import Stream


def expectations_fit(stream: Stream) -> None:
    """Its expectations have different names, go with its output mode, and leave its state as it is."""
    names: set[str] = set()
    if not isinstance(stream.expectations, tuple) or not all(isinstance(e, Expectation) for e in stream.expectations):
        raise DeclarationError(
            f"stream {stream.name}: expectations is not what it should be",
            got=repr(stream.expectations),
            hint='expectations=(Expectation("positive", "amount > 0", on_violation="keep"),)',
        )
    for expectation in stream.expectations:
        if expectation.name.lower() in names:
            raise DeclarationError(
                f"stream {stream.name} has two expectations of one name",
                got=expectation.name,
                hint="rename one: names do not differ in case alone",
            )
        names.add(expectation.name.lower())
        _check_dead_letters(stream, expectation)
        _check_columns(stream, expectation)


def _check_dead_letters(stream: Stream, expectation: Expectation) -> None:
    """A row that replaces an earlier one is no dead letter: the topic would keep the earlier one, and the state not."""
    if expectation.on_violation != "dead letter":
        return
    mode = type(stream.output_mode).__name__
    if others := [output.name for output in stream.outputs.values() if not isinstance(output, TopicOutput)]:
        raise DeclarationError(
            f"stream {stream.name}: expectation {expectation.name} can make dead letters of rows for topics alone",
            got=others[0],
            hint="use KEEP or FAIL",
        )
    if isinstance(stream.output_mode, (EmitChanges, KeyedState)):
        raise DeclarationError(
            f"stream {stream.name}: expectation {expectation.name} cannot make dead letters of rows that are updated, "
            "as the topic would keep an earlier value of the key that the state no longer has",
            got=f"DEAD LETTER with {mode}",
            hint="leave such records out before the state, by WHERE in a stream or step before; or use EMIT FINAL, "
            "KEEP or FAIL",
        )


def _check_columns(stream: Stream, expectation: Expectation) -> None:
    """Spark keeps no state for a column that nothing reads. A rule that alone reads one would change the state."""
    outputs = list(stream.outputs.values())
    if not stream.stateful_steps or not all(isinstance(output, TopicOutput) for output in outputs):
        return
    written = {"output"} if len(outputs) > 1 else set[str]()
    for output in outputs:
        assert isinstance(output, TopicOutput)
        for columns in (output.key, output.value):
            written |= {name.lower() for name in ((columns,) if isinstance(columns, str) else columns) if name}
    if unwritten := [name for name in expectation.columns if name not in written]:
        raise DeclarationError(
            f"stream {stream.name}: expectation {expectation.name} names a column that its output does not have, so "
            "the rule would change what the stream keeps in state",
            got=unwritten[0],
            hint=f"write the column too, or take one of: {', '.join(sorted(written))}",
        )
