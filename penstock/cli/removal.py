"""`penstock streams remove`: what a stream that is declared no more has left, kept or removed by choice."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlparse

import typer

from penstock.catalog import Catalog, load
from penstock.cli.output import actor, clear_errors, console, table
from penstock.cli.streams import Note
from penstock.control import connect
from penstock.engine.checkpoint import s3a
from penstock.errors import PenstockError
from penstock.kafka import cleanup
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.commit_marker import delete_commit_marker
from penstock.kafka.replay import REPLAYS
from penstock.model.declaration import CatalogNode
from penstock.model.topic import COMMITS, DEAD_LETTERS, POSITIONS, TOPIC_NAME
from penstock.object_store.bucket import Bucket
from penstock.settings import settings

# Beside the checkpoint: its tables, what it was before a reset, a reset that was not taken up, a rebuild that was not
# ended, and what a search left.
FOLDERS = ("", ".tables", ".before", ".reset", ".rebuilding", ".dry-run")


def remove(
    name: Annotated[str, typer.Argument(help="A stream that is declared no more.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Remove its checkpoint, mark and consumer group.")
    ] = False,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Remove this topic, and all its records; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and change nothing.")] = False,
    note: Note = "",
) -> None:
    """Show what a stream that is gone has left; remove of it what is named, and nothing that others use."""
    with clear_errors():
        catalog = load()
        if name in catalog.declared or not TOPIC_NAME.fullmatch(name):
            raise PenstockError(
                f"{name} is no stream that is gone",
                got="it is declared" if name in catalog.declared else repr(name),
                hint="take it out of its file, and release its app",
            )
        control, client = connect(), admin(settings().bootstrap)
        lease = control.leases().get(name)
        if lease is not None and lease.expires_at > control.now():
            raise PenstockError(
                f"a driver still holds the lease of {name}",
                got=f"driver {lease.holder}",
                hint="release its app, so that a driver without it follows, and try again",
            )
        group = f"penstock.{name}"
        there = partition_counts(client, settings().bootstrap)
        read = cleanup.topics_of_group(settings().bootstrap, group, there)
        folders = _left(name)
        users = {topic: used_by(catalog, topic) for topic in there if not topic.startswith("__")}
        chosen = set(topics or ())
        _refuse(chosen, users)
        made = table(["what", "", "used by", "is"])
        for folder in folders:
            made.add_row("checkpoint", str(folder), "", "removed" if checkpoint else "kept")
        made.add_row("consumer group", group, "", "removed" if checkpoint else "kept")
        for topic in sorted(users):
            # What it wrote is not known any more: it is among the topics that nobody uses.
            if topic in read or not users[topic]:
                about = "topic it read" if topic in read else "topic of nobody"
                made.add_row(about, topic, ", ".join(users[topic]), "removed" if topic in chosen else "kept")
        console().print(made)
        if dry_run or not (checkpoint or chosen):
            return
        if checkpoint:
            cleanup.delete_group(client, group, settings().bootstrap)
            for goes in folders.values():
                goes()
            if COMMITS.name in there:
                # A mark without a checkpoint would stop a later stream of this name.
                delete_commit_marker(name, settings().bootstrap)
        cleanup.delete_topics(client, chosen, settings().bootstrap)
        said = [*(["checkpoint"] if checkpoint else []), *sorted(chosen)]
        control.record(actor(), "remove", name, f"{note}: {', '.join(said)}" if note else ", ".join(said))
    typer.echo(f"removed of {name}: {', '.join(said)}")


def used_by(catalog: Catalog, topic: str) -> list[str]:
    """Who reads or writes a topic; not those who read it by a pattern and go on without it."""
    if topic in (COMMITS.name, POSITIONS.name, DEAD_LETTERS.name, REPLAYS.name):
        return ["Penstock"]
    found = {d.name for d in catalog.declared.values() if CatalogNode("topic", topic) in (*d.reads, *d.writes)}
    found |= {
        stream.name
        for stream in catalog.streams.values()
        if any(
            given.pattern and given.fails_on_data_loss and given.reads_topic(topic) for given in stream.sources.values()
        )
    }
    return sorted(found) or (["the catalog"] if topic in catalog.topics else [])


def _refuse(chosen: set[str], users: Mapping[str, list[str]]) -> None:
    if missing := sorted(chosen - users.keys()):
        raise PenstockError("the broker does not have these topics", got=", ".join(missing), hint="leave them out")
    if used := [f"{topic} ({', '.join(users[topic])})" for topic in sorted(chosen) if users[topic]]:
        raise PenstockError("these topics are used by others", got=", ".join(used), hint="leave them out")


def _left(name: str) -> dict[str, Callable[[], None]]:
    """The folders of a stream's checkpoint that are there, with what removes each."""
    root = settings().checkpoint_root
    place = urlparse(root)
    found: dict[str, Callable[[], None]] = {}
    if s3a.is_object_store(root):
        store = s3a.store_below(root)
        for folder in (f"{name}{suffix}" for suffix in FOLDERS):
            if keys := [one.key for one in store.list_objects(folder)]:
                found[f"{root.rstrip('/')}/{folder}"] = partial(_deleted, store, keys)
        # On this host's disk: tables, and files of folds' state that were brought from there.
        beside = [*settings().home.glob(f"tables/*/{name}.tables"), *settings().home.glob(f"folds/*/{name}")]
    elif place.scheme in ("", "file"):
        beside = [Path(place.path) / f"{name}{suffix}" for suffix in FOLDERS]
    else:
        raise PenstockError(
            "the checkpoints are on no disk of this machine and in no object store",
            got=root,
            hint=f"remove the folder {name} there with that store's own tools",
        )
    return found | {str(path): partial(shutil.rmtree, path) for path in beside if path.is_dir()}


def _deleted(store: Bucket, keys: list[str]) -> None:
    for key in keys:
        store.delete(key)
