"""The OpenLineage events of one stream's runs: START, RUNNING with progress, and COMPLETE, FAIL or ABORT."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock import __version__
from penstock.lineage.datasets import DatasetName, input_datasets, node_dataset
from penstock.lineage.emitter import LineageEmitter, job_namespace
from penstock.model.output import Output, TopicOutput
from penstock.settings import settings

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent
    from openlineage.client.facet_v2 import DatasetFacet, RunFacet, column_lineage_dataset

    from penstock.control import ProgressRow
    from penstock.model.declaration import CatalogNode
    from penstock.model.mask import Method
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

EventType = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
# The column of a sink's rows that is written.
DOCUMENT = "doc"
# The run of Airflow's task that launched the driver: `namespace/job/run id`, as dbt's integration takes it too.
PARENT, ROOT_PARENT = "OPENLINEAGE_PARENT_ID", "OPENLINEAGE_ROOT_PARENT_ID"
COUNTS = {"rows_in": "recordsRead", "rows_out": "rowsWritten", "late": "lateRecords", "dead": "deadLetters"}


class FrameColumn(NamedTuple):
    """A column of the rows that a transform makes; of a struct there is one for each field too, as `doc.id`.

    Attributes:
        type: As Spark writes it.
        inputs: The fields that its values are made of, each with the name of the input; empty if they are not known.
        mask: How it is masked.
    """

    type: str
    inputs: frozenset[tuple[str, str]] = frozenset()
    mask: Method | None = None


FrameColumns = Mapping[str, FrameColumn]


class StreamLineage:
    """Emits the events of a stream. A run begins when the query starts, and ends when it stops or fails.

    A stream that fails ends one run, however often its query is started again; the next run begins once a batch has
    ended well. Calls return at once.

    Args:
        stream: The stream.
        figures: Its row of progress, which others keep up to date.
        emitter: Where events go; None for nowhere.
    """

    def __init__(self, stream: Stream, figures: ProgressRow, emitter: LineageEmitter | None = None) -> None:
        self._stream, self._figures, self._emitter = stream, figures, emitter
        self._lock = threading.Lock()
        self._run_id, self._failed, self._reported_at = "", False, 0.0
        self._counts_before: dict[str, int] = {}
        self._describe: Callable[[], FrameColumns] | None = None
        self._columns: FrameColumns = {}

    def started(self, describe: Callable[[], FrameColumns]) -> None:
        """The query runs.

        Args:
            describe: Returns the columns of the transform's rows. It is called in the emitter's thread.
        """
        if self._emitter is None:
            return
        with self._lock:
            self._describe = describe
            if not self._failed and not self._run_id:
                self._begin()

    def batch_ended(self) -> None:
        """A batch has ended well."""
        with self._lock:
            if self._failed:
                self._failed = False
                self._begin()

    def reported(self) -> None:
        """The stream has reported its progress."""
        with self._lock:
            if self._run_id and time.monotonic() - self._reported_at >= settings().lineage_every:
                self._reported_at = time.monotonic()
                self._emit("RUNNING")

    def failed(self, error: str) -> None:
        """The query has failed, could not be started, or is blocked."""
        with self._lock:
            if not self._failed:
                if not self._run_id:
                    self._begin()
                self._end("FAIL", error)
                self._failed = True

    def stopped(self) -> None:
        """The stream is stopped in order."""
        with self._lock:
            self._failed = False
            self._end("COMPLETE")

    def aborted(self, reason: str) -> None:
        """The driver ends at once, and the stream with it."""
        # Another thread may hold the lock for ever.
        if self._lock.acquire(timeout=0.1):
            self._end("ABORT", reason)
            self._lock.release()

    def _begin(self) -> None:
        if self._emitter is None:
            return
        from openlineage.client.uuid import generate_new_uuid

        self._run_id, self._reported_at = str(generate_new_uuid()), time.monotonic()
        self._counts_before = {name: getattr(self._figures, name) for name in COUNTS}
        self._emit("START")

    def _end(self, event: EventType, error: str = "") -> None:
        if self._run_id:
            self._emit(event, error)
        self._run_id = ""

    def _emit(self, event: EventType, error: str = "") -> None:
        if self._emitter is None:
            return
        figures = self._figures
        counts = {name: getattr(figures, name) - before for name, before in self._counts_before.items()}
        more = {"lag": figures.lag, "batch": figures.batch_id, "watermark": figures.watermark}
        at, topics = datetime.now(UTC).isoformat(), tuple(figures.topics)
        self._emitter.emit(partial(self._event, event, self._run_id, at, counts, more, topics, error))

    def _event(
        self, event: EventType, run_id: str, at: str, counts: dict[str, int], more: dict[str, Any],
        topics: tuple[str, ...], error: str,
    ) -> RunEvent:  # fmt: skip
        """The event, made in the emitter's thread."""
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import JobFacet, RunFacet, error_message_run, job_type_job

        progress = {COUNTS[name]: count for name, count in counts.items()} | more
        run_facets: dict[str, RunFacet] = {
            **engine_and_parent(),
        }
        own = RunFacet().with_additional_properties(**{n: value for n, value in progress.items() if value is not None})
        assert isinstance(own, RunFacet)
        run_facets["penstock_progress"] = own
        if error:
            run_facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "PYTHON")
        job_facets: dict[str, JobFacet] = {
            "jobType": job_type_job.JobTypeJobFacet("STREAMING", "PENSTOCK", self._stream.kind.upper())
        }
        return RunEvent(
            eventTime=at,
            producer=producer(),
            run=Run(run_id, run_facets),
            job=Job(job_namespace(), f"{self._stream.app}.{self._stream.name}", job_facets),
            eventType=RunState[event],
            inputs=list(self._inputs(topics, counts)),
            outputs=list(self._outputs(topics, counts)),
        )

    def _inputs(self, topics: tuple[str, ...], counts: dict[str, int]) -> list[InputDataset]:
        from openlineage.client.event_v2 import InputDataset
        from openlineage.client.facet_v2 import InputDatasetFacet, input_statistics_input_dataset

        found: dict[DatasetName, InputDataset] = {}
        for name, dataset in input_datasets(self._stream, topics):
            input_ = self._stream.inputs[name]
            types = {declared.name: str(declared.type) for declared in input_.fields}
            statistics: dict[str, InputDatasetFacet] = {}
            if len(self._stream.inputs) == 1 and input_.topic:
                statistics["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                    rowCount=counts["rows_in"]
                )
            found.setdefault(dataset, InputDataset(*dataset, inputFacets=statistics, facets=_schema_facet(types)))
        return list(found.values())

    def _outputs(self, topics: tuple[str, ...], counts: dict[str, int]) -> list[OutputDataset]:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import OutputDatasetFacet, output_statistics_output_dataset

        columns, outputs = self._frame_columns(), {one.name: one for one in self._stream.outputs.values()}
        sources = dict(input_datasets(self._stream, topics))
        return [
            OutputDataset(
                *node_dataset(node),
                outputFacets={
                    "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                        rowCount=counts["rows_out"]
                    )
                }
                if _is_only(node, outputs)
                else dict[str, OutputDatasetFacet](),
                facets=_facets(written_columns(outputs[node.name], columns), sources) if node.name in outputs else {},
            )
            for node in self._stream.writes
        ]

    def _frame_columns(self) -> FrameColumns:
        describe, self._describe = self._describe, None
        if describe is not None:
            try:
                self._columns = describe()
            except Exception as e:
                log.warning("stream %s: its columns are not part of its lineage: %s", self._stream.name, e)
        return self._columns


def producer() -> str:
    """The URI that tells which code has made an event."""
    return f"urn:penstock:{__version__}"


def engine_and_parent() -> dict[str, RunFacet]:
    """Facets of each run: the version of Spark, and the task of Airflow that launched the driver, if it is known."""
    from openlineage.client.facet_v2 import parent_run, processing_engine_run

    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(version("pyspark"), "spark")
    }
    parent, root = (os.environ.get(name, "").rsplit("/", 2) for name in (PARENT, ROOT_PARENT))
    if len(parent) == 3:
        top = None
        if len(root) == 3:
            top = parent_run.Root(parent_run.RootRun(root[2]), parent_run.RootJob(root[0], root[1]))
        facets["parent"] = parent_run.ParentRunFacet(
            parent_run.Run(parent[2]), parent_run.Job(parent[0], parent[1]), top
        )
    return facets


def written_columns(output: Output, columns: FrameColumns) -> dict[str, FrameColumn]:
    """The fields that an output writes, by name; none if a record of it is not a JSON object or document."""
    by_name = {name.lower(): column for name, column in columns.items()}
    methods = {mask.column.lower(): mask.method for mask in output.mask}
    if isinstance(output, TopicOutput):
        names = () if isinstance(output.value, str) else output.value
        written = {name: by_name[name.lower()] for name in names if name.lower() in by_name}
        types = {name: column.type if column.type == "binary" else "string" for name, column in written.items()}
    else:
        prefix = f"{DOCUMENT}."
        written = {n.removeprefix(prefix): column for n, column in columns.items() if n.startswith(prefix)}
        # The transform has masked it.
        types = {name: column.type for name, column in written.items()}
    return {
        name: FrameColumn(types[name], column.inputs, methods[name.lower()]) if name.lower() in methods else column
        for name, column in written.items()
        if methods.get(name.lower()) != "dropped"
    }


def _is_only(node: CatalogNode, outputs: Mapping[str, Output]) -> bool:
    return len(outputs) == 1 and node.name in outputs


def _schema_facet(types: Mapping[str, str]) -> dict[str, DatasetFacet]:
    from openlineage.client.facet_v2 import schema_dataset

    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in types.items()]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields)} if fields else {}


def _transformations(column: FrameColumn) -> list[column_lineage_dataset.Transformation]:
    """That a column is masked, in OpenLineage's words."""
    from openlineage.client.facet_v2 import column_lineage_dataset

    if column.mask is None:
        return []
    return [column_lineage_dataset.Transformation("DIRECT", "TRANSFORMATION", column.mask, masking=True)]


def _facets(columns: Mapping[str, FrameColumn], sources: Mapping[str, DatasetName]) -> dict[str, DatasetFacet]:
    """The facets of what is written: its schema, and the input fields of the columns for which they are known."""
    from openlineage.client.facet_v2 import column_lineage_dataset

    facets = _schema_facet({name: column.type for name, column in columns.items()})
    fields = {
        name: column_lineage_dataset.Fields(
            [
                column_lineage_dataset.InputField(*sources[source], source_field, _transformations(column))
                for source, source_field in sorted(column.inputs)
            ]
        )
        for name, column in columns.items()
        if column.inputs
    }
    if fields:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields)
    return facets
