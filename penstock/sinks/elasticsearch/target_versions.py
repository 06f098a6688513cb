"""The versions of a sink's index: indexes of other names, of which an alias shows one as the sink's index.

`<index>` is an alias of `<index>-version-<id>` once it was replaced. `<index>-version-next` is an alias of the version
that is built, and `<index>-version-before` of the one that was shown before; each has its tombstones beside it. All
aliases change in one request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from elasticsearch import BadRequestError, NotFoundError
from elasticsearch import Elasticsearch as Client

from penstock.errors import PenstockError, SinkError, Wait
from penstock.model.output import Output
from penstock.sinks.core.connections import required_url
from penstock.sinks.elasticsearch.client import connect, request_errors
from penstock.sinks.elasticsearch.config import TOMBSTONE_SUFFIX, Elasticsearch
from penstock.sinks.elasticsearch.indexes import PRIORITY, SETTINGS, template_name

# Seconds that the copy of an index may take, which is links to its files where the disk can have them.
COPY_TIMEOUT_S = 600.0

Action = dict[str, dict[str, Any]]


def open_index_versions(output: Output, replacement: str, back: bool) -> IndexVersions:
    """See `penstock.model.target_versions.VersionsOpener`."""
    assert isinstance(output, Elasticsearch)
    return IndexVersions(connect(required_url(output.connection, output.name)), output, replacement, back=back)


class IndexVersions:
    """See `TargetVersions`.

    Args:
        client: Of the server; it is closed with this.
        output: The sink's output.
        replacement: The id of the replacement.
        back: Whether the version before is shown again.
    """

    def __init__(self, client: Client, output: Elasticsearch, replacement: str, *, back: bool = False) -> None:
        self._client, self._output, self._back = client, output, back
        self._index = output.index
        self._next, self._before = f"{self._index}-version-next", f"{self._index}-version-before"
        self._built = f"{self._index}-version-{replacement[:8]}"
        self._own_name = re.compile(
            re.escape(self._index) + rf"-version-[0-9a-f]{{8}}(-copy)?(?P<tombstones>{TOMBSTONE_SUFFIX})?"
        )

    @property
    def new(self) -> Elasticsearch:
        """See `TargetVersions`; once it is prepared."""
        with self._errors("to find the new version"):
            return replace(self._output, index=self._index_of(self._next) or self._built)

    def prepare(self) -> None:
        """See `TargetVersions`."""
        with self._errors("to prepare the new version"):
            present = self._index_of(self._next)
            before = self._index_of(self._before)
            if present == self._built or (present and self._back and present == before):
                return
            if present:
                self._unname(present)
            if not self._back:
                self._client.indices.create(
                    index=self._built,
                    settings=self._settings(),
                    mappings={"dynamic": "false"},
                    aliases={self._next: {}},
                )
            elif before:
                self._change([_add(before, self._next)])
            else:
                raise PenstockError(
                    f"the documents of {self._output.name} before its replacement are not kept",
                    got=f"no alias {self._before}",
                    hint="put the earlier code on the disk, and replace the sink again: that builds them anew",
                )
            self._drop_unnamed()

    def show(self) -> None:
        """See `TargetVersions`.

        An index of the sink's own name cannot be renamed, so a copy of it is kept and it is removed, in the request
        that gives its name to the new version.
        """
        with self._errors("to show the new version"):
            if new := self._index_of(self._next):
                # A search must find all that is written.
                self._client.indices.refresh(index=new)
                self._change(self._actions(new))
            self._move_template()
            self._drop_unnamed()

    def discard(self) -> None:
        """See `TargetVersions`."""
        with self._errors("to remove the new version"):
            if present := self._index_of(self._next):
                self._unname(present)
            self._drop_unnamed()

    def forget(self) -> None:
        """See `TargetVersions`."""
        with self._errors("to remove the version before"):
            if before := self._index_of(self._before):
                self._change([_remove(before, self._before)])
            self._drop_unnamed()

    def close(self) -> None:
        """See `TargetVersions`."""
        self._client.close()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        with request_errors(f"{what} of {self._output.name}"):
            yield

    def _index_of(self, name: str) -> str | None:
        """The name of the index that is behind a name; None if there is none."""
        try:
            found = sorted(self._client.indices.get(index=name, features="aliases"))
        except NotFoundError:
            return None
        if len(found) > 1:
            raise SinkError(
                f"{name} of Elasticsearch is an alias of several indexes",
                got=", ".join(found),
                hint="let one index alone have the alias",
            )
        return str(found[0])

    def _settings(self) -> Any:
        """What somebody has set in the template of the sink's index holds for its new version, too."""
        try:
            [present] = self._client.indices.get_index_template(name=template_name(self._index))["index_templates"]
        except NotFoundError:
            return {"index": SETTINGS}
        return present["index_template"].get("template", {}).get("settings") or {"index": SETTINGS}

    def _change(self, actions: list[Action]) -> None:
        self._client.indices.update_aliases(actions=actions)

    def _actions(self, new: str) -> list[Action]:
        """What gives the name of the sink's index, and of its tombstones, to a version."""
        old, actions = self._index_of(self._index), [_remove(new, self._next)]
        if earlier := self._index_of(self._before):
            actions.append(_remove(earlier, self._before))
        tombstones = self._index + TOMBSTONE_SUFFIX
        if old:
            kept = self._copy(old, f"{self._built}-copy") if old == self._index else old
            actions += [_add(kept, self._before), *self._moved_aliases(old, new), *_freed(old, self._index)]
            if old_tombstones := self._index_of(tombstones):
                if old_tombstones != kept + TOMBSTONE_SUFFIX:
                    self._copy(old_tombstones, kept + TOMBSTONE_SUFFIX)
                actions += _freed(old_tombstones, tombstones)
        actions.append(_add(new, self._index))
        if self._client.indices.exists(index=new + TOMBSTONE_SUFFIX):
            actions.append(_add(new + TOMBSTONE_SUFFIX, tombstones))
        return actions

    def _copy(self, present: str, copy: str) -> str:
        """Copy an index to another name, which is returned."""
        client = self._client.options(request_timeout=COPY_TIMEOUT_S)
        # Nothing writes to it meanwhile, and Elasticsearch asks for it.
        client.indices.add_block(index=present, block="write")
        try:
            client.indices.clone(index=present, target=copy, settings={"index.blocks.write": None})
        except BadRequestError as e:
            # Of a process that was killed.
            if e.error != "resource_already_exists_exception":
                raise
        health = client.cluster.health(index=copy, wait_for_status="yellow", timeout=f"{COPY_TIMEOUT_S / 2:g}s")
        if health["timed_out"]:
            raise Wait(f"the copy {copy} of index {present} is not there yet", seconds=5.0)
        return copy

    def _moved_aliases(self, old: str, new: str) -> list[Action]:
        """Other aliases, which people gave to the version that is shown."""
        aliases = self._client.indices.get_alias(index=old)[old]["aliases"]
        others = {name: how for name, how in aliases.items() if name not in (self._index, self._next, self._before)}
        moved = [_add(new, name, **how) for name, how in others.items()]
        return moved if old == self._index else moved + [_remove(old, name) for name in others]

    def _move_template(self) -> None:
        """Let the index be made as the version that is shown, if somebody deletes that."""
        shown = self._index_of(self._index)
        if shown is None or shown == self._index:
            return
        mappings = self._client.indices.get_mapping(index=shown)[shown]["mappings"]
        self._client.indices.put_index_template(
            name=template_name(self._index),
            index_patterns=[self._index],
            priority=PRIORITY,
            template={"settings": self._settings(), "mappings": mappings},
        )
        self._delete_template(shown)

    def _unname(self, present: str) -> None:
        self._delete_template(present)
        self._change([_remove(present, self._next)])

    def _delete_template(self, index: str) -> None:
        self._client.options(ignore_status=404).indices.delete_index_template(name=template_name(index))

    def _drop_unnamed(self) -> None:
        """Remove versions that have no alias: neither shown, nor built, nor kept."""
        named = {self._index_of(name) for name in (self._index, self._next, self._before)}
        present = self._client.indices.get(index=f"{self._index}-version-*", features="aliases")
        for name in sorted(present):
            match = self._own_name.fullmatch(name)
            if match and name.removesuffix(match["tombstones"] or "") not in named:
                self._client.options(ignore_status=404).indices.delete(index=name)


def _add(index: str, alias: str, **how: Any) -> Action:
    return {"add": {"index": index, "alias": alias, **how}}


def _remove(index: str, alias: str) -> Action:
    return {"remove": {"index": index, "alias": alias}}


def _freed(index: str, name: str) -> list[Action]:
    """What takes a name from an index, which has it as an alias or is called so."""
    return [{"remove_index": {"index": index}}] if index == name else [_remove(index, name)]
