"""What an action would do, in sentences, before it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.control import Control
from penstock.model.declaration import CAPTURES_APP
from penstock.monitoring.dashboard import releases
from penstock.monitoring.dashboard.model import CaptureView, StreamView
from penstock.monitoring.dashboard.page_data import PageData
from penstock.monitoring.humanize import duration

# Names in a sentence.
NAMED = 7


def desired_effects(data: PageData, names: Sequence[str], verb: str) -> list[str]:
    """Of a start or stop of some streams. Sentences may have code between backticks."""
    want = "on" if verb == "start" else "off"
    streams = [data.streams[name] for name in names if name in data.streams]
    changed = [stream for stream in streams if stream.desired != want]
    if not changed:
        return [f"Nothing changes: the desired state is {want} already."]
    return list(_starts(changed) if want == "on" else _stops(data, changed))


def _starts(streams: Sequence[StreamView]) -> Iterator[str]:
    yield f"{named([stream.name for stream in streams])} {_verb(streams, 'starts', 'start')}."
    lag = sum(stream.lag or 0 for stream in streams)
    if lag:
        yield f"Not read yet, by the last report: {lag:,} records."
    elif new := [stream.name for stream in streams if stream.batch_id is None and stream.app != CAPTURES_APP]:
        yield f"No batch of {named(new)} was ever reported."


def _stops(data: PageData, streams: Sequence[StreamView]) -> Iterator[str]:
    yield f"{named([stream.name for stream in streams])} {_verb(streams, 'stops', 'stop')} after the current batch."
    for app in dict.fromkeys(stream.app for stream in streams):
        stopped = {stream.name for stream in streams}
        others = [one for one in data.streams.values() if one.app == app and one.name not in stopped]
        if not any(one.desired == "on" for one in others):
            yield f"The driver of {app} ends, as no other stream of it is on."
    if data.declarations is None:
        yield "What reads the output is not known yet: the declarations are being read."
        return
    nodes = [(row["kind"], row["name"]) for stream in streams if (row := data.declared(stream.name))]
    reached = data.declarations.flow.reached(nodes)
    yield (
        f"No new rows reach {named(reached.names, reached.total)}."
        if reached.names
        else "Nothing that is declared reads the output."
    )


def capture_effects(data: PageData, name: str, verb: str) -> list[str]:
    """Of a request to a capture."""
    capture = next((one for one in data.view.captures if one.name == name), None)
    if capture is None:
        return ["The capture has not reported yet; the request waits for it."]
    return list(_of_request(capture, verb))


def _of_request(capture: CaptureView, verb: str) -> Iterator[str]:
    if capture.asked:
        yield f"The request {capture.asked}, which is not answered yet, is dropped."
    if capture.desired == "off" or capture.state != "running":
        yield f"It is {capture.state}: the request waits until it runs."
    rows = capture.drift["rows"] if capture.drift else capture.snapshot[1] if capture.snapshot else None
    table = f"its table of about {rows:,} rows" if rows else "its table"
    if verb == "poll":
        ago = "not polled yet" if capture.poll_age_ms is None else f"last polled {duration(capture.poll_age_ms)} ago"
        yield f"It was {ago}."
    elif verb == "reconcile":
        yield f"It compares {table} with the topic, and writes the records that differ."
    elif verb == "snapshot":
        yield f"It reads {table}, and writes each row to its topic again, for everything that reads it."
    elif capture.phase == "refused":
        yield f"It accepts: {capture.waits}"
    else:
        yield f"It waits for nothing that must be accepted: it is {capture.phase or 'not started'}."


def release_effects(control: Control, data: PageData, app: str, to: str) -> list[str]:
    """Of a release of the code on the disk, or of an earlier release.

    Raises:
        ReleaseRefused: There is no such release, or its code is damaged.
    """
    view = next(one for one in data.view.apps if one.name == app)
    code = f"the code of release {to}" if to else "the code on the disk"
    sentences = []
    if view.running_release is not None and view.running_release != view.release_seq:
        sentences.append(f"Release {view.running_release} still drains; release {view.release_seq} was to follow it.")
    known = {row.number for row in control.releases(app) if row.digest}
    running = view.running_release if view.running_release in known else view.release_seq
    if running in known:
        changed = releases.changes(control, app, str(running), to or releases.DISK)
        paths = [file["path"] for file in changed["files"]]
        files = f"{changed['count']:,} {'file' if changed['count'] == 1 else 'files'}"
        sentences.append(
            f"Compared with release {running}, {files} of {code} {'differs' if changed['count'] == 1 else 'differ'}: "
            f"{named(paths, changed['count'])}."
            if paths
            else f"It is the code of release {running}: the driver is replaced, and nothing else changes."
        )
    on = [stream.name for stream in view.streams if stream.desired == "on"]
    sentences.append(f"Restarted with {code}: {named(on) if on else 'no stream, as all are off'}.")
    sentences.append("Before that, the code is checked against the state of each stream; what does not fit is refused.")
    return sentences


def named(names: Sequence[str], total: int | None = None) -> str:
    """Some names as code. total: how many there are; by default those that are given."""
    more = (len(names) if total is None else total) - len(names[:NAMED])
    return ", ".join(f"`{name}`" for name in names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _verb(streams: Sequence[StreamView], one: str, several: str) -> str:
    return one if len(streams) == 1 else several
