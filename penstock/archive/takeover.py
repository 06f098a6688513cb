"""Takes over an archive of Penstock 0.2, which had a layout of its own, into the table of the archive that succeeds it.

::

    <prefix>/date=2026-01-31/hour=23/*.parquet           records; they count if the state or a manifest names them
    <prefix>/_penstock/states/<writer>-<n>.json.gz       what is archived; the greatest name is valid
    <prefix>/_penstock/hours/date=.../hour=23/*.json.gz  manifests of closed hours

Each file is compared with what the old archive says of it, and each hour with its manifest. Records that the archive
has written itself are left out. Which hours are taken over is a property of the table, set in the commit of their
records, so an interrupted run is continued. The old objects are left as they are.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive import file_io, records
from penstock.archive.closed_hours import ClosedHour, ClosedHours
from penstock.archive.decoded import row_decoder
from penstock.archive.reader import RESTORE_HINT, spans_of_file
from penstock.archive.state import Span, Spans, merge_spans, span_difference
from penstock.archive.table import ArchiveTable
from penstock.errors import SinkError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from penstock.archive.stream import ArchiveOutput
    from penstock.object_store.bucket import Bucket

STATES = "_penstock/states"
TAKEN = "penstock.taken-over"


@dataclass(frozen=True)
class OldFile:
    """A file of the old archive, and its records by partition."""

    key: str
    spans: Spans


@dataclass(frozen=True)
class TakenHour:
    """An hour that was taken over; `records` 0 if an earlier run did it, or the archive had them all."""

    hour: str
    records: int
    files: int


def take_over(output: ArchiveOutput, bucket: str, prefix: str) -> Iterator[TakenHour]:
    """Copy the records of an old archive into the table of an archive, hour by hour.

    Args:
        output: The archive that takes them.
        bucket: Where the old archive is.
        prefix: Where the old archive is.

    Raises:
        SinkError: There is no old archive, or a file of it is damaged or missing.
        LeaseLost: The archive runs.
        Wait: The catalog or the store does not answer.
    """
    store = file_io.open_bucket(bucket, prefix)
    old = _state(store)
    table, closed, decode = ArchiveTable.create(output), ClosedHours.of(output), row_decoder(output)
    claim, closed_before = table.claim(), closed.read()
    progress = _progress(table, old)
    for hour in sorted({*old["open"], *old["closed"]}):
        if hour in progress["hours"]:
            yield TakenHour(hour, 0, 0)
            continue
        manifest = _json(store, old["closed"][hour]["key"]) if hour in old["closed"] else None
        late = old["open"].get(hour, ())
        files = [_file(one) for one in [*(manifest["files"] if manifest else ()), *late]]
        firsts = progress["firsts"]
        parts = (decode(part) for file in files for part in _records(store, file, firsts))
        written = _write(table, hour, parts)
        spans = merge_spans(one for _, one in written)
        expected = {name: Span(*numbers) for name, numbers in manifest["spans"].items()} if manifest else {}
        is_whole = manifest is not None and not late and not firsts
        if is_whole and (difference := span_difference(expected, spans)):
            raise SinkError(
                f"hour {hour} of the old archive has other records than its manifest says",
                got=difference, hint=RESTORE_HINT,
            )  # fmt: skip
        there = table.files_of_hour(hour)
        progress["hours"].append(hour)
        added = [entry for entry, one in written if one]
        table.commit(replace(table.state, claim=claim), added, properties={TAKEN: json.dumps(progress)})
        if is_whole and not there and hour not in closed_before:
            at = old["closed"][hour]
            closed.add(
                [
                    ClosedHour(
                        hour, at["revision"], at["at"], sum(s.rows for s in spans.values()),
                        sum(entry.file_size_in_bytes for entry in added), len(added), table.snapshot_id or 0, spans,
                    )
                ]
            )  # fmt: skip
        yield TakenHour(hour, sum(span.rows for span in spans.values()), len(added))
    _take_state(table, claim, old)


def _write(table: ArchiveTable, hour: str, parts: Iterator[pa.Table]) -> list[tuple[DataFile, Spans]]:
    if not table.is_partitioned:
        return [table.write_file(hour, parts)]
    return [table.write_file(hour, [rows], values) for part in parts for values, rows in table.split(part)]


def _progress(table: ArchiveTable, old: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has done: `hours` that are taken over, and `firsts`, by partition the first offset that the archive
    had written itself before. Both change with the commits of the table."""
    if text := table.property(TAKEN):
        found: dict[str, Any] = json.loads(text)
        return found
    state = table.state
    spans = merge_spans(spans_of_file(table, file) for file in table.files())
    own = {
        f"{topic}/{p}": spans[name].first if (name := f"{topic}/{p}") in spans else position
        for topic, offsets in state.positions.items()
        for p, position in offsets.items()
        # Of a topic that was recreated all old records are others.
        if not _is_recreated(state.ids, old["ids"], topic)
    }
    return {"hours": [], "firsts": own}


def _is_recreated(ids: Mapping[str, str], old: Mapping[str, str], topic: str) -> bool:
    return topic in ids and topic in old and ids[topic] != old[topic]


def _take_state(table: ArchiveTable, claim: tuple[int, str], old: Mapping[str, Any]) -> None:
    """Say that the table has what the old archive had as well."""
    state = table.state
    positions, begins = ({t: dict(p) for t, p in kind.items()} for kind in (state.positions, state.begins))
    recreated = {*state.recreated, *old["recreated"]}
    for topic, offsets in old["positions"].items():
        if _is_recreated(state.ids, old["ids"], topic):
            recreated.add(topic)
            continue
        for name, position in offsets.items():
            p = int(name)
            own, start = begins.get(topic, {}).get(p), old["begins"].get(topic, {}).get(name)
            if start is not None and (own is None or position >= own):
                begins.setdefault(topic, {})[p] = start
            positions.setdefault(topic, {})[p] = max(position, positions.get(topic, {}).get(p, 0))
    ids = {**old["ids"], **state.ids}
    changed = replace(
        state, claim=claim, positions=positions, begins=begins, ids=ids, recreated=tuple(sorted(recreated))
    )
    table.commit(changed)


def _records(store: Bucket, file: OldFile, firsts: Mapping[str, int]) -> Iterator[pa.Table]:
    """The records of an old file that the table does not have."""
    url, found = store.url(file.key), dict[str, Span]()
    try:
        with store.open_input(file.key) as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(records.ROW_GROUP_ROWS):
                part = pa.Table.from_batches([batch]).select(records.SCHEMA.names).cast(records.SCHEMA)
                found = merge_spans([found, records.spans_of(part)])
                yield _without(part, firsts)
    except (pa.ArrowException, KeyError) as e:
        raise SinkError(f"a file of the old archive cannot be read: {url}", got=str(e)[:300], hint=RESTORE_HINT) from e
    if difference := span_difference(file.spans, found):
        raise SinkError(
            f"a file of the old archive holds other records than were written: {url}", got=difference, hint=RESTORE_HINT
        )


def _without(part: pa.Table, firsts: Mapping[str, int]) -> pa.Table:
    for name, first in firsts.items():
        topic, _, partition = name.rpartition("/")
        here = (pc.field("topic") == topic) & (pc.field("partition") == int(partition))
        part = part.filter(~(here & (pc.field("offset") >= first)))
    return part


def _file(entry: Mapping[str, Any]) -> OldFile:
    return OldFile(entry["key"], {name: Span(*numbers) for name, numbers in entry["spans"].items()})


def _state(store: Bucket) -> dict[str, Any]:
    states = store.list_objects(STATES)
    if not states:
        raise SinkError(
            "there is no archive of the old layout", got=store.url(STATES), hint="give its bucket and its prefix"
        )
    return {"begins": {}, "recreated": [], **_json(store, states[-1].key)}


def _json(store: Bucket, key: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(gzip.decompress(store.get(key)))
    except (OSError, EOFError, ValueError) as e:
        raise SinkError(f"{store.url(key)} is no valid object of an archive", got=str(e), hint=RESTORE_HINT) from e
    return content
