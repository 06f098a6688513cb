"""`penstock dead-letters`: list, show and replay dead letters."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.catalog import load, partial_catalog
from penstock.cli.output import clear_errors, console, emit, table, unknown
from penstock.errors import PenstockError
from penstock.kafka.dead_letters import DeadLetter, printable, read_dead_letters
from penstock.kafka.replay import Replay, replay
from penstock.monitoring.humanize import duration
from penstock.settings import settings

app = typer.Typer(no_args_is_help=True, help="List, show and replay dead letters.")

# Offsets of each partition among which the newest dead letters are searched.
NEWEST = 100_000
WIDTH = 100
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
OfTopic = Annotated[str, typer.Argument(help="A dead-letter topic, as `list` shows it.")]
OfStream = Annotated[str, typer.Option("--stream", help="Only those of this stream.")]


@app.command("list")
def list_letters(as_json: AsJson = False) -> None:
    """Count dead letters by topic, stream and reason, with the age of the newest."""
    groups: Counter[tuple[str, str, str]] = Counter()
    newest: dict[tuple[str, str, str], int] = {}
    with clear_errors():
        for one in read_dead_letters(partial_catalog()[0].dead_letter_topics, settings().bootstrap):
            group = one.topic, one.stream, _kind(one)
            groups[group] += 1
            newest[group] = max(one.timestamp, newest.get(group, 0))
    if as_json:
        names = ("topic", "stream", "reason")
        emit([{**dict(zip(names, of, strict=True)), "count": n, "newest": newest[of]} for of, n in groups.items()])
        return
    if not groups:
        console().print("There are no dead letters.")
        return
    made = table(["topic", "stream", "count", "newest", "reason"], right=["count"])
    now = int(time.time() * 1000)
    for (topic, stream, kind), n in sorted(groups.items()):
        age = f"{duration(max(0, now - newest[topic, stream, kind]))} ago"
        made.add_row(topic, Text(printable(stream, WIDTH)), str(n), age, Text(kind))
    console().print(made)


@app.command()
def show(
    topic: OfTopic,
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, help="How many.")] = 10,
    stream: OfStream = "",
    as_json: AsJson = False,
) -> None:
    """Show the newest dead letters of a topic: origin, reason and value, with control characters escaped."""
    with clear_errors():
        # Of one stream all may lie below those of another.
        every = read_dead_letters([_known(topic)], settings().bootstrap, None if stream else max(NEWEST, newest))
        letters = deque((one for one in every if stream in ("", one.stream)), newest)
    if as_json:
        emit([_data(one) for one in letters])
        return
    made = table(["place", "stream", "reason", "key", "text"])
    for one in letters:
        text = printable(one.value, WIDTH) + (f" (cut: {printable(one.truncated, WIDTH)})" if one.truncated else "")
        texts = (one.location, one.stream, one.reason, one.key, text)
        made.add_row(*(Text(printable(text, WIDTH + 40)) for text in texts))
    console().print(made)


@app.command("replay")
def send_again(
    topic: OfTopic,
    place: Annotated[
        list[str] | None,
        typer.Option("--place", help="Only the record of this PLACE, or PARTITION:OFFSET; may be repeated."),
    ] = None,
    stream: OfStream = "",
    again_for: Annotated[
        list[str] | None,
        typer.Option("--again-for", help="A stream that may read the records although they are not its dead letters."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters to their original topic, each once, after the stream was fixed.

    Every stream that reads the topic reads them again. A record is refused if it is no dead letter of one of them,
    which would count it twice, unless --again-for names that stream.
    """
    with clear_errors():
        catalog = load()
        chosen = [
            one
            for one in read_dead_letters([_known(topic)], settings().bootstrap)
            if stream in ("", one.stream) and (not place or not places_of(one).isdisjoint(place))
        ]
        unambiguous(chosen, place or ())
        if missing := sorted(set(place or ()).difference(*map(places_of, chosen))):
            hint = f"penstock dead-letters show {topic}"
            raise PenstockError(f"no dead letter of {topic} has this origin", got=", ".join(missing), hint=hint)
        everything = read_dead_letters(catalog.dead_letter_topics, settings().bootstrap)
        for name in again_for or ():
            catalog.stream(name)
        found = replay(
            chosen, everything, catalog.readers, settings().bootstrap, again_for=again_for or (), dry=dry_run
        )
    _told(found, dry=dry_run, as_json=as_json)
    if any(one.refusal for one in found):
        raise typer.Exit(1)


def _told(found: list[Replay], *, dry: bool, as_json: bool) -> None:
    if as_json:
        said = (
            {"sent": bool(one.record) and not dry, "refused": one.refusal, "done": one.already_replayed}
            for one in found
        )
        emit([{**_data(one.letter), **more} for one, more in zip(found, said, strict=True)])
        return
    out = console()
    sent, done = sum(bool(one.record) for one in found), sum(one.already_replayed for one in found)
    out.print(f"{sent} records {'would be' if dry else 'are'} sent again, {done} were before.")
    for one in found:
        if one.refusal:
            out.print(
                Text(f"{printable(one.letter.location, WIDTH)} is not: {printable(one.refusal, 400)}", style="yellow")
            )


def _known(topic: str) -> str:
    known = partial_catalog()[0].dead_letter_topics
    if topic not in known:
        raise unknown("dead-letter topic", topic, known)
    return topic


def _kind(letter: DeadLetter) -> str:
    """What letters of one kind have in common: their reason without the value it names."""
    return printable(letter.reason.partition(": ")[0], WIDTH)


def places_of(letter: DeadLetter) -> set[str]:
    """Names of its origin: as it is shown, and without the topic."""
    return {letter.location, f"{letter.origin.partition}:{letter.origin.offset}"} if letter.origin else set()


def unambiguous(chosen: Sequence[DeadLetter], places: Iterable[str]) -> None:
    for place in places:
        found = sorted({one.location for one in chosen if place in places_of(one)})
        if len(found) > 1:
            raise PenstockError(
                "records of several topics lie at that place", got=place, hint=f"say {' or '.join(found)}"
            )


def _data(letter: DeadLetter) -> dict[str, Any]:
    return {
        "place": letter.location,
        "stream": letter.stream,
        "reason": letter.reason,
        "at": letter.timestamp,
        "key": None if letter.key is None else letter.key.decode(errors="backslashreplace"),
        "text": None if letter.value is None else letter.value.decode(errors="backslashreplace"),
        "cut": letter.truncated,
    }
