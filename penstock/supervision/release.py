"""Requests a release of a snapshot that would run, or the replacement of a stream; otherwise refuses it before any
driver drains.

What is checked is the snapshot itself, so an edit meanwhile changes nothing. It is imported by separate processes,
because the caller may be Airflow's API server.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from penstock.control import Actor, Control, ReplacementRow
from penstock.errors import BrokerError, BrokerRefused, PenstockError, ReleaseRefused, ReplacementRefused
from penstock.host import files
from penstock.model.topic import Topic
from penstock.registry.registration import SubjectSchema, register_all
from penstock.settings import settings
from penstock.supervision import code_snapshot, launch, released_code

# Seconds that the declarations, and the plans of an app's streams, may take to be read.
READ_TIMEOUT, PLAN_TIMEOUT = 60.0, 180.0


def release(
    control: Control,
    app: str,
    actor: Actor,
    note: str = "",
    *,
    accept_state: bool = False,
    request: str = "",
    to: str = "",
) -> int:
    """Ask for a new driver of an app, and return the number of the release.

    Args:
        control: The control database.
        app: The app.
        actor: Who asks for it.
        note: Recorded with it.
        accept_state: Whether to release it though its plan does not fit the state of its streams; it is recorded.
        request: Id of the request; a release that was already requested with it is not requested again.
        to: Number or digest of the earlier release whose code it runs; empty: the code on the disk.

    Raises:
        ReleaseRefused: The code does not load, or cannot go on with the state that its streams have; or the home of
            this host cannot be written.
    """
    control.check_can_release(app)
    with _alone_on_host():
        earlier = released_code.find(control, app, to) if to else None
        if earlier and earlier.digest:
            digest = earlier.digest
            # Another host may release meanwhile, and an old release is then removed with its code.
            control.use_snapshot(digest)
        else:
            digest = released_code.take(control)
        needs = _check(control, app, released_code.copy_of(control, digest), accept_state=accept_state)
        register_schemas(app, needs.schemas)
        _create_topics(app, needs.topics)
    if earlier:
        note = f"{note} (the code of release {earlier.number})".strip()
    if accept_state:
        note = f"{note} (what streams have in state is accepted)".strip()
    number = control.release(app, actor, note, request, digest)
    released_code.prune(control, app)
    return number


@contextmanager
def _alone_on_host() -> Iterator[None]:
    """Whoever asks on this host waits for the others: several JVMs at once take so long that all are given up."""
    run = settings().home / "run"
    with ExitStack() as lock:
        with code_snapshot.clear_errors(run):
            lock.enter_context(files.locked(run / "release.lock"))
        yield


def start_replacement(
    control: Control,
    app: str,
    stream: str,
    actor: Actor,
    options: Mapping[str, Any],
    note: str = "",
    *,
    request: str = "",
    dry_run: bool = False,
) -> ReplacementRow | None:
    """Ask for a new version of a stream by the code on the disk, which is built beside the running one.

    Args:
        control: The control database.
        app: The app of the stream.
        stream: The stream.
        actor: Who asks for it.
        options: See `ReplacementRow`.
        note: Recorded with it.
        request: Id of the request, 32 characters; one that was made is not made again.
        dry_run: Whether the code is only checked.

    Returns:
        The replacement; None if the code was only checked.

    Raises:
        ReleaseRefused: The code does not load, or cannot go on with the state of another stream; or the app has an open
            replacement.
    """
    if request and (earlier := control.replacement(request)):
        return earlier
    control.check_can_release(app)
    row = control.app(app)
    if row is None or row.digest is None or stream not in control.desired(app):
        raise ReplacementRefused(
            f"stream {stream} has no running version that could be replaced",
            got=f"app {app} {'does not run it' if row and row.digest else 'was never launched'}",
            hint=f"`penstock streams release {app}` lets its driver run it",
        )
    with _alone_on_host():
        digest = released_code.take(control)
        needs = check_replacement(control, app, stream, digest)
    if dry_run:
        return None
    register_schemas(app, needs.schemas)
    _create_topics(app, needs.topics)
    return control.request_replacement(stream, app, digest, row.digest, actor, options, request, note)


def start_going_back(
    control: Control, app: str, stream: str, actor: Actor, options: Mapping[str, Any], note: str = ""
) -> ReplacementRow:
    """Ask for the version that a stream had before its replacement, with the code and the state that were kept.

    Args:
        control: The control database.
        app: The app of the stream.
        stream: The stream.
        actor: Who asks for it.
        options: See `ReplacementRow`.
        note: Recorded with it.

    Returns:
        The replacement.

    Raises:
        ReleaseRefused: The stream has no earlier version that is kept, or the app was released since.
    """
    last = version_before(control, app, stream)
    control.use_snapshot(last.previous)
    with _alone_on_host():
        needs = check_replacement(control, app, stream, last.previous)
    register_schemas(app, needs.schemas)
    note = f"{note} (back to the version before)".strip()
    return control.request_replacement(
        stream, app, last.previous, last.digest, actor, {**options, "back": True}, note=note
    )


def version_before(control: Control, app: str, stream: str) -> ReplacementRow:
    """The replacement of a stream behind which one can go back.

    Raises:
        ReleaseRefused: The stream has no earlier version that is kept, or the app was released since.
    """
    control.check_can_release(app)
    last, row = control.last_cut(stream), control.app(app)
    if last is None or last.state != "cut":
        raise ReplacementRefused(
            f"stream {stream} has no version to go back to",
            got=f"its replacement is {last.state}" if last else "it was never replaced",
            hint=f"put the earlier code on the disk, and `penstock streams replace {stream}`",
        )
    if row is None or row.digest != last.digest:
        raise ReplacementRefused(
            f"app {app} was released since stream {stream} was replaced, and to go back would undo that too",
            got=f"the code {((row and row.digest) or 'of no release')[:12]} instead of {last.digest[:12]}",
            hint=f"put the code that is wanted on the disk, and `penstock streams replace {stream}`",
        )
    return last


def check_replacement(control: Control, app: str, stream: str, digest: str) -> AppNeeds:
    """What the code of an app needs, if it would run and can go on with the state of all streams but one.

    Args:
        control: The control database.
        app: The app.
        stream: The stream that gets new state.
        digest: Of the code.

    Raises:
        ReleaseRefused: It would not.
    """
    return _check(control, app, released_code.copy_of(control, digest), replaced=stream)


def cut_over(control: Control, row: ReplacementRow) -> ReplacementRow | None:
    """Begin the cut: the code of the new version is released, so that the running driver drains, and the next one waits
    with the stream until the replacement is `cut` or `failed`.

    Returns:
        The row, also if the cut had begun; None if the replacement was ended meanwhile.
    """
    return control.begin_cut(row.id)


def undo_cut(control: Control, row: ReplacementRow, why: str) -> bool:
    """Let a replacement fail: the running version goes on, of which the code is released again if the cut had begun.

    False if the replacement has ended, or is cut.
    """
    return control.undo_replacement(row.id, why)


class AppNeeds(NamedTuple):
    """What the code of an app needs outside of it.

    Attributes:
        schemas: That it writes by.
        topics: That it reads and writes.
    """

    schemas: list[SubjectSchema]
    topics: list[Topic]


def _check(control: Control, app: str, project: Path, *, accept_state: bool = False, replaced: str = "") -> AppNeeds:
    """Raise ReleaseRefused if the code of an app would not run; returns what it needs.

    Args:
        control: The control database.
        app: The app.
        project: The folder of its code.
        accept_state: As for `release`.
        replaced: A stream that gets new state.
    """
    declared = _run_check(("penstock.catalog", app), READ_TIMEOUT, project)
    missing = control.desired(app).keys() - set(declared["names"])
    owned_by_others = [
        name for name in declared["names"] if declared["others"] and control.app_of(name) not in (None, app)
    ]
    if declared["wrong"]:
        raise ReleaseRefused(
            f"the code of app {app} cannot be read, so it is not released and its driver continues",
            got="; ".join(declared["wrong"]),
            hint="correct the files, and release again",
        )
    if declared["others"] and (unclear := sorted({*missing, *owned_by_others})):
        raise ReleaseRefused(
            f"a file of another app cannot be read and may declare {', '.join(unclear)}, so app {app} is not released "
            "and its driver continues",
            got="; ".join(declared["others"]),
            hint="correct the file, and release again",
        )
    if not declared["names"]:
        raise ReleaseRefused(f"nothing is declared for app {app} any more", hint="stop it; its driver then exits")
    # A release of a checkout has a library of its own, and an early one says less.
    if replaced and replaced not in declared.get("replaceable", ()):
        obstacle = declared.get("irreplaceable", {}).get(replaced)
        wrong = "it is no stream with topics" if replaced in declared["names"] else "its code does not declare it"
        raise ReplacementRefused(
            f"{replaced} cannot be replaced",
            got=obstacle or wrong,
            hint="write the new statement in another file with another target, and let readers change to that"
            if obstacle
            else f"app {app} declares {', '.join(declared.get('replaceable', ())) or 'no stream that can be'}",
        )
    if declared["streams"]:
        exception = ["--accept"] if accept_state else ["--except", replaced] if replaced else []
        checked = _run_check(("penstock.engine.checkpoint.plan_fingerprint", app, *exception), PLAN_TIMEOUT, project)
        if refused := checked["refused"]:
            raise ReleaseRefused(
                f"app {app} cannot continue with this code, so it is not released and its driver continues",
                got="; ".join(refused),
                hint=_replacement_hint(checked.get("differing", ()), replaced),
            )
    schemas = [SubjectSchema(*schema) for schema in declared.get("schemas", ())]
    topics = [Topic(**{**one, "retention": timedelta(seconds=one["retention"])}) for one in declared.get("topics", ())]
    return AppNeeds(schemas, topics)


def _replacement_hint(differing: Sequence[str], replaced: str) -> str:
    """What to do about streams that have state of other code, where nothing may stand still."""
    if not differing:
        return ""
    if replaced:
        return f"a replacement changes one stream: leave {', '.join(differing)} as before, and replace it afterwards"
    more = ", one stream at a time" if len(differing) > 1 else ""
    return f"to build the new state while the old code runs, `penstock streams replace {differing[0]}`{more}"


def register_schemas(app: str, schemas: Sequence[SubjectSchema]) -> None:
    """Register the schemas that an app writes by, so that its batches find them.

    Raises:
        ReleaseRefused: The registry refuses one, or does not answer, or there is none.
    """
    try:
        register_all(schemas)
    except PenstockError as e:
        raise ReleaseRefused(
            f"the schemas that app {app} writes by cannot be registered: {e.what}", got=e.got, hint=e.hint
        ) from e


def _create_topics(app: str, topics: Sequence[Topic]) -> None:
    """Create the topics of an app that do not exist, so that its driver and whoever reads them find them.

    Raises:
        ReleaseRefused: The broker refuses one. If it does not answer, the driver says so.
    """
    # Kafka's client is more than most commands need to load.
    from penstock.kafka.admin import create_missing

    try:
        create_missing(topics, settings().bootstrap)
    except BrokerRefused as e:
        raise ReleaseRefused(f"the topics of app {app} cannot be created: {e.what}", got=e.got, hint=e.hint) from e
    except BrokerError:
        return


def _run_check(command: Sequence[str], timeout: float, project: Path) -> dict[str, Any]:
    """Run a module on a snapshot and return the JSON of its last line. ReleaseRefused if it fails."""
    what = f"`python -m {' '.join(command)}` could not check the code"
    try:
        answer = launch.run_json_module(
            command, timeout, project, PENSTOCK_SPARK_MASTER="local[1]", PENSTOCK_DRIVER_MEMORY="512m"
        )
    except subprocess.TimeoutExpired as e:
        raise ReleaseRefused(what, got=f"no answer within {timeout:g} s", hint="try it again") from e
    except subprocess.CalledProcessError as e:
        error = e.stderr.decode(errors="replace").strip()[-2000:]
        raise ReleaseRefused(what, got=_on_disk(error, project)) from e
    return {
        key: [_on_disk(v, project) if isinstance(v, str) else v for v in value] if isinstance(value, list) else value
        for key, value in answer.items()
    }


def _on_disk(text: str, project: Path) -> str:
    """A message with the names of the files that an author edits, in place of those in the snapshot."""
    return text.replace(str(project), str(settings().project))
