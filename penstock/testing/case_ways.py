"""The ways to run a case: as streams, as a recompute from an archive, and with states that are rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive import records
from penstock.catalog import load_partial
from penstock.engine.operations.recompute import EPOCH, RecomputeCounts, check_chain, recompute_rows
from penstock.engine.operations.stream_explanation import explain
from penstock.engine.session import session_for
from penstock.errors import DeclarationError
from penstock.model.output_mode import EmitFinal
from penstock.testing.case_file import RefusedStatement, StreamCase, Way
from penstock.testing.case_run import CaseFailure, CaseResult, CaseRun, NotPossible, compare
from penstock.testing.declared import pick, read_project
from penstock.testing.registry_values import RegistryTopics
from penstock.testing.row_diff import Row
from penstock.testing.topics import Record, delete_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.stream import Stream

END = datetime(9000, 1, 1, tzinfo=UTC)


def run_case(case: StreamCase, way: Way, project: Path, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    """Run a case.

    Args:
        case: The case.
        way: How.
        project: The folder of the project whose streams it names.
        spark: A session.
        bootstrap: A broker, whose topics are deleted first.
        folder: An empty folder.

    Raises:
        CaseFailure: It had another result.
        NotPossible: It cannot be run in this way.
        PenstockError: It does not fit its streams, or the broker fails.
    """
    declared, broken = read_project(project)
    streams = pick(case.streams, {**declared.streams, **declared.disabled}, "stream", broken, case.label(1))
    if way == "recompute":
        check_recompute(case, streams)
    delete_all(bootstrap)
    registered = RegistryTopics(declared.topics)
    with registered.in_place():
        result = CaseRun(case, streams, registered, spark, bootstrap, folder, rebuilds=way == "rebuild").run()
        if way == "recompute":
            _compare_recomputed(case, streams, registered, spark, result, folder)


def check_refusal(refusal: RefusedStatement, label: str, project: Path, spark: SparkSession) -> None:
    """Check that a statement is refused as it should be: by the checks of `penstock streams check`, else by Spark.

    Args:
        refusal: The statement.
        label: What a message calls it.
        project: The folder of the project whose topics it reads.
        spark: A session.

    Raises:
        CaseFailure: It is accepted, or refused with another message.
    """
    with TemporaryDirectory(prefix="penstock-refused-") as folder:
        draft = Path(folder, f"{refusal.name}.sql")
        draft.write_text(refusal.sql)
        catalog, broken = load_partial(project, combiners=False, drafts=[draft])
        message = next((str(e) for e in broken if e.path == draft), "")
        if not message:
            stream = catalog.streams[refusal.name]
            try:
                explain(stream, session_for(spark, stream))
            except DeclarationError as e:
                message = str(e)
    if not message:
        raise CaseFailure(f"{label}: the statement is accepted")
    if refusal.error not in message:
        raise CaseFailure(f"{label}: the statement is refused for another reason\n\nexpected {refusal.error}\n"
                          f"actual   {message}")  # fmt: skip


def check_recompute(case: StreamCase, streams: Sequence[Stream]) -> None:
    """NotPossible if a recompute does not mean the same as the streams."""
    try:
        check_chain(streams)
    except DeclarationError as e:
        raise NotPossible(str(e)) from e
    if any(step.late for step in case.steps):
        raise NotPossible("records are late, and a recompute has them in time")
    if any(isinstance(one.output_mode, EmitFinal) for one in streams[:-1]) and not isinstance(
        streams[-1].output_mode, EmitFinal
    ):
        raise NotPossible("a recompute has the windows that are open in the first stream at the end")
    if case.output not in (None, streams[-1].output_names[0]):
        raise NotPossible("a recompute makes the rows of the last stream alone")


def _compare_recomputed(
    case: StreamCase,
    streams: Sequence[Stream],
    registered: RegistryTopics,
    spark: SparkSession,
    result: CaseResult,
    folder: Path,
) -> None:
    """CaseFailure if a recompute of all records has other rows than the streams wrote last under each key."""
    archive = folder / "archive.parquet"
    pq.write_table(_archived(result.sent), archive)
    end = END
    if isinstance(streams[-1].output_mode, EmitFinal):
        end = EPOCH + timedelta(milliseconds=result.watermark)
    counts, rows = RecomputeCounts(), list[Row]()
    for table in recompute_rows(spark, streams, [str(archive)], start=EPOCH, end=end, counts=counts):
        rows += [
            (_text(row["key"]), registered.text(row["value"])) for row in table.select(["key", "value"]).to_pylist()
        ]
    label = f"{case.label(len(case.steps))}: records of a recompute"
    compare(label, rows, list(dict(result.rows).items()))
    if end == END and (bad := sum(counts.bad.values())) != result.dead:
        raise CaseFailure(f"{label}: {bad} could not be read, and {result.dead} became dead letters")


def _archived(sent: Sequence[Record]) -> pa.Table:
    """Records as an archive has them, in one file."""
    rows = [
        {
            "topic": one.topic, "partition": one.partition, "offset": one.offset, "key": _bytes(one.key),
            "value": _bytes(one.value) if one.value_bytes is None else one.value_bytes,
            "timestamp": at, "event_time": at,
            "headers": [{"key": name, "value": text.encode()} for name, text in one.headers] or None,
        }
        for one in sent
        for at in [EPOCH + timedelta(milliseconds=one.timestamp)]
    ]  # fmt: skip
    return records.to_archive_schema(pa.Table.from_pylist(rows, records.SCHEMA))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
