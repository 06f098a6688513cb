"""`penstock dead-letters`: list, show, replay and discard dead letters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.catalog import load
from penstock.cli.arguments import AsJson, DryRun, Note, Place, Recorded, look_up, valid_catalog
from penstock.cli.output import actor, clear_errors, console, emit, table
from penstock.control import connect
from penstock.errors import PenstockError
from penstock.kafka.dead_letters import DeadLetter, printable, read_dead_letters
from penstock.kafka.discard import discard
from penstock.kafka.replay import Replay, end_of, read_replay_keys, replay
from penstock.monitoring.humanize import duration
from penstock.settings import settings

app = typer.Typer(no_args_is_help=True, help="List, show, replay and discard dead letters.")

# Offsets of each partition among which the newest dead letters are searched.
MIN_SEARCHED = 100_000
WIDTH = 100
OfTopic = Annotated[str, typer.Argument(help="A dead-letter topic, as `list` shows it.")]
OfStream = Annotated[str, typer.Option("--stream", help="Only dead letters of this stream.")]


@app.command("list")
def list_letters(as_json: AsJson = False) -> None:
    """Count dead letters by topic, stream and reason, with the age of the newest.

    Open are those that were neither replayed nor discarded.
    """
    groups: Counter[tuple[str, str, str]] = Counter()
    still_open: Counter[tuple[str, str, str]] = Counter()
    newest: dict[tuple[str, str, str], int] = {}
    with clear_errors():
        noted = read_replay_keys(settings().bootstrap)
        for one in read_dead_letters(valid_catalog().dead_letter_topics, settings().bootstrap):
            group = one.topic, one.stream, _kind(one)
            groups[group] += 1
            still_open[group] += not end_of(one, noted)
            newest[group] = max(one.timestamp, newest.get(group, 0))
    if as_json:
        names = ("topic", "stream", "reason")
        emit(
            [
                {**dict(zip(names, of, strict=True)), "count": n, "open": still_open[of], "newest": newest[of]}
                for of, n in groups.items()
            ]
        )
        return
    if not groups:
        console().print("There are no dead letters.")
        return
    rows = table(["topic", "stream", "count", "open", "newest", "reason"], right=["count", "open"])
    now = int(time.time() * 1000)
    for group, n in sorted(groups.items()):
        topic, stream, kind = group
        age = f"{duration(max(0, now - newest[group]))} ago"
        rows.add_row(topic, Text(printable(stream, WIDTH)), str(n), str(still_open[group]), age, Text(kind))
    console().print(rows)


@app.command()
def show(
    topic: Annotated[str, typer.Argument(help="A dead-letter topic, as `list` shows it. Default: all.")] = "",
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, help="Number of dead letters.")] = 10,
    stream: OfStream = "",
    as_json: AsJson = False,
) -> None:
    """Show the newest dead letters: origin, reason and value, with control characters escaped."""
    with clear_errors():
        topics = [_declared(topic)] if topic else valid_catalog().dead_letter_topics
        # All dead letters of one stream may be older than those of another.
        every = read_dead_letters(topics, settings().bootstrap, None if stream else max(MIN_SEARCHED, newest))
        # Each topic's are in order of time.
        by_time = ((one.timestamp, place, one) for place, one in enumerate(every) if stream in ("", one.stream))
        letters = [one for _, _, one in sorted(nlargest(newest, by_time))]
    if as_json:
        emit([_data(one) for one in letters])
        return
    rows = table(["place", "stream", "reason", "key", "text"])
    for one in letters:
        text = printable(one.value, WIDTH) + (f" (cut: {printable(one.truncated, WIDTH)})" if one.truncated else "")
        texts = (one.location, one.stream, one.reason, one.key, text)
        rows.add_row(*(Text(printable(text, WIDTH + 40)) for text in texts))
    console().print(rows)


@app.command("replay")
def replay_letters(
    topic: OfTopic,
    place: Place = None,
    stream: OfStream = "",
    again_for: Annotated[
        list[str] | None,
        typer.Option(
            "--again-for",
            help="A stream that may read the records again, although they are not its dead letters; may be repeated.",
        ),
    ] = None,
    note: Note = "",
    recorded: Recorded = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters to their original topic, each once, after the stream was fixed.

    All streams that read the topic read the records again. A record that one of them has processed before is refused,
    unless --again-for names that stream.
    """
    with clear_errors():
        catalog = load()
        chosen = [
            one
            for one in read_dead_letters([_declared(topic)], settings().bootstrap)
            if stream in ("", one.stream) and (not place or not one.places.isdisjoint(place))
        ]
        check_places(chosen, place or (), topic, topic)
        everything = read_dead_letters(catalog.dead_letter_topics, settings().bootstrap)
        for name in again_for or ():
            catalog.stream(name)
        if chosen and not (dry_run or recorded):
            again = f"again for {', '.join(again_for)}" if again_for else ""
            record_choice("replay", topic, note, len(chosen), stream and f"of {stream}", again, places=place)
        results = replay(
            chosen, everything, catalog.readers, settings().bootstrap, again_for=again_for or (), dry=dry_run
        )
    _print_results(results, dry=dry_run, as_json=as_json)
    if any(one.refusal for one in results):
        raise typer.Exit(1)


@app.command("discard")
def discard_letters(
    topic: OfTopic,
    place: Place = None,
    stream: OfStream = "",
    reason: Annotated[str, typer.Option("--reason", help="Only dead letters whose reason begins so.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the topic.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    note: Note = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Note that dead letters are never to be replayed. Their topic keeps them until they expire."""
    with clear_errors():
        if not (place or stream or reason or everything):
            raise PenstockError(
                "no dead letters are chosen", hint="give --place, --stream or --reason, or --all for all of them"
            )
        chosen = [
            one
            for one in read_dead_letters([_declared(topic)], settings().bootstrap)
            if stream in ("", one.stream)
            and one.reason.startswith(reason)
            and (not place or not one.places.isdisjoint(place))
        ]
        check_places(chosen, place or (), topic, topic)
        if chosen and not (yes or dry_run):
            typer.confirm(f"Discard {len(chosen)} dead letters of {topic}?", abort=True)
        results = discard(chosen, settings().bootstrap, dry=True)
        discarded = sum(not one.ended for one in results)
        if discarded and not dry_run:
            of_stream, of_reason = stream and f"of {stream}", reason and f"reason {reason}"
            record_choice("discard", topic, note, discarded, of_stream, of_reason, places=place)
            results = discard(chosen, settings().bootstrap)
            discarded = sum(not one.ended for one in results)
    if as_json:
        emit([{**_data(one.letter), "discarded": not one.ended and not dry_run, "ended": one.ended} for one in results])
        return
    counts = Counter(one.ended for one in results)
    console().print(
        f"{discarded} dead letters {'would be' if dry_run else 'were'} discarded; {counts['discarded']} were discarded "
        f"and {counts['replayed']} replayed before."
    )


def _print_results(results: list[Replay], *, dry: bool, as_json: bool) -> None:
    if as_json:
        emit(
            [
                {
                    **_data(one.letter),
                    "sent": bool(one.record) and not dry,
                    "refused": one.refusal,
                    "done": one.already_replayed or one.discarded,
                    "discarded": one.discarded,
                }
                for one in results
            ]
        )
        return
    out = console()
    sent, done = sum(bool(one.record) for one in results), sum(one.already_replayed for one in results)
    discarded = sum(one.discarded for one in results)
    before = f"{done} were replayed before" + (f", {discarded} discarded" if discarded else "")
    out.print(f"{sent} records {'would be' if dry else 'were'} sent; {before}.")
    for one in results:
        if one.refusal:
            location, refusal = printable(one.letter.location, WIDTH), printable(one.refusal, 400)
            out.print(Text(f"{location} is refused: {refusal}", style="yellow"))


def _declared(topic: str) -> str:
    return look_up("dead-letter topic", topic, {name: name for name in valid_catalog().dead_letter_topics})


def _kind(letter: DeadLetter) -> str:
    """The reason without the value that it names."""
    return printable(letter.reason.partition(": ")[0], WIDTH)


def record_choice(
    verb: str, target: str, note: str, count: int, *which: str, places: Sequence[str] | None = None
) -> None:
    """Store in the audit log what the command is about to do with dead letters.

    Args:
        verb: replay or discard.
        target: their topic or sink.
        note: the reason that was given.
        count: of dead letters.
        which: how they were chosen, besides places.
        places: as given by --place.
    """
    chosen = [f"{count:,} dead letters", *which, f"places {', '.join(places)}" if places else ""]
    connect().record(actor(), verb, target, "; ".join(filter(None, (note, *chosen))))


def check_places(letters: Sequence[DeadLetter], places: Iterable[str], owner: str, topic: str) -> None:
    """Check that each place is the origin of exactly one record.

    Args:
        letters: dead letters of these places.
        places: as given by --place.
        owner: the sink or topic, for the error.
        topic: of the dead letters, for the hint.

    Raises:
        PenstockError: a place is of no record, or of several.
    """
    for place in places:
        locations = sorted({one.location for one in letters if place in one.places})
        if not locations:
            hint = f"take a place that `penstock dead-letters show {topic}` shows"
            raise PenstockError(f"{owner} has no dead letter of this place", got=place, hint=hint)
        if len(locations) > 1:
            raise PenstockError(
                "several topics have a record at this place", got=place, hint=f"use {' or '.join(locations)}"
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
