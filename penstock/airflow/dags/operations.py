"""The DAGs that a project has once: forms to operate, release, replace and rebuild streams, heartbeats, the reaper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow.sdk import DAG, Param

from penstock.airflow.archives import MaintainArchive
from penstock.airflow.commands import RebuildStream
from penstock.airflow.dag_ids import OPERATE_DAG, RELEASE_DAG, REPLACE_DAG
from penstock.airflow.dags.base import note_param, penstock_dag
from penstock.airflow.operators import (
    EndOrphanedDrivers,
    OperateStreams,
    ReleaseStreams,
    SendHeartbeats,
)
from penstock.airflow.replacements import ReplaceStream
from penstock.catalog import apps, partial_catalog
from penstock.catalog.replacements import is_replaceable
from penstock.model.output_mode import KeyedState
from penstock.supervision.replacement_options import CutMode, WriteAtCut


def operate() -> Iterator[DAG]:
    """A form to start and stop streams."""
    with penstock_dag(
        OPERATE_DAG,
        description="start or stop streams",
        schedule=None,
        tags=["penstock", "operate"],
        params={
            "action": Param(
                "start", type="string", enum=["start", "stop"], description="`stop` waits for the end of the batch."
            ),
            "target": _target("An app with all its streams, or one stream."),
            "note": note_param(),
        },
        doc_md="Trigger it to start or stop streams. The user is recorded with the note. Who may trigger it may do so "
        "on the operator page too.",
    ) as dag:
        OperateStreams(task_id="operate")
    yield dag


def release() -> Iterator[DAG]:
    """A form to release apps, apart from `operate`, so that it can have a permission of its own."""
    with penstock_dag(
        RELEASE_DAG,
        description="release the code of streams",
        schedule=None,
        tags=["penstock", "operate"],
        params={
            "target": _target("Releasing a stream releases its app: all its streams share one driver."),
            "to": Param(
                "",
                type=["null", "string"],
                maxLength=64,
                description="Number or digest of an earlier release, whose code runs again; empty: the code on the "
                "disk. `penstock streams releases APP` and the operator page list them.",
            ),
            "note": note_param(),
        },
        doc_md="Trigger it to replace the driver of an app by one that runs the code on the disk, or that of an "
        "earlier release. It fails if the release is refused. The user is recorded with the note. Who may trigger it "
        "may do so on the operator page too.",
    ) as dag:
        ReleaseStreams(task_id="release")
    yield dag


def _target(description: str) -> Param:
    """The field of a form for an app or a stream."""
    catalog, errors = partial_catalog()
    targets = [f"app {app}" for app in apps(catalog, errors)] + [
        f"stream {name}" for name in sorted(catalog.supervised)
    ]
    return _choice(targets, description)


def _choice(names: Sequence[str], description: str) -> Param:
    """The field of a form for one of these, which must be chosen: the first of them is hardly the one that is meant."""
    return Param(type="string", enum=[*names] or [""], description=description)


def replace() -> Iterator[DAG]:
    """A form to replace a running stream by a new version with state of its own."""
    catalog, _ = partial_catalog()
    streams = [name for name in sorted(catalog.streams) if is_replaceable(catalog, name)]
    with penstock_dag(
        REPLACE_DAG,
        description="replace a running stream by a new version",
        schedule=None,
        tags=["penstock", "operate"],
        params={
            "stream": _choice(
                streams, "Its new version is the code on the disk; at the cut that of the whole app is released."
            ),
            "begin": Param(
                None,
                type=["null", "string"],
                format="date-time",
                description="Time of the first record that the new version reads; empty: what its state needs.",
            ),
            "rate": Param(
                None,
                type=["null", "integer"],
                minimum=1,
                description="Records per second that it reads at most; empty: what leaves the running version in time.",
            ),
            "write": Param(
                WriteAtCut.differing.value,
                type="string",
                enum=[one.value for one in WriteAtCut],
                description="Which rows that the running version wrote otherwise are written at the cut.",
            ),
            "expect": Param(
                "",
                type=["null", "string"],
                maxLength=500,
                description="What the comparison must show: `equal`, or `equal-except:COLUMN,COLUMN`; empty: nothing.",
            ),
            "cut": Param(
                CutMode.auto.value,
                type="string",
                enum=[one.value for one in CutMode],
                description="As soon as it has caught up, or by `penstock replacements cut` or the operator page.",
            ),
            "in_place": Param(
                False,
                type="boolean",
                description="Stop the running version first, on a machine without room for both.",
            ),
            "archive": Param(
                True,
                type="boolean",
                description="Build the state of the archive of its input, where there is one.",
            ),
            "note": note_param(),
        },
        doc_md="Trigger it to change a stream whose state the new code cannot read, while the stream runs. It waits "
        "until the new version writes, and fails if the replacement is refused, is cancelled or fails. "
        "`penstock replacements show NAME` shows its progress. The user is recorded with the note.",
    ) as dag:
        ReplaceStream(task_id="replace")
    yield dag


def rebuild() -> Iterator[DAG]:
    """A form to rebuild the state of a stream from its output or its inputs."""
    streams = partial_catalog()[0].streams.items()
    rebuildable = sorted(name for name, stream in streams if isinstance(stream.output_mode, KeyedState))
    with penstock_dag(
        "rebuild_streams",
        description="rebuild the state of a stream from its topics",
        schedule=None,
        max_active_runs=1,
        tags=["penstock", "operate"],
        params={
            "stream": _choice(
                rebuildable, "It must be stopped, and its folds must declare how their state is restored."
            ),
        },
        doc_md="For a stream whose checkpoint is lost, or cannot be read by the present code. Stop it with "
        "`operate_streams`, run this, and start it: it continues after its last batch. The log reports the keys and "
        "bytes of the state before and after.",
    ) as dag:
        RebuildStream(task_id="rebuild")
    yield dag


def heartbeat() -> Iterator[DAG]:
    """Sends heartbeats, which close windows if no records arrive."""
    with penstock_dag(
        "heartbeat",
        description="sends heartbeats",
        schedule="@continuous",
        max_active_runs=1,
        tags=["penstock", "heartbeat"],
        doc_md="A trigger sends the heartbeats while a run waits. Each hour, and after a release, a new run takes "
        "over.",
    ) as dag:
        SendHeartbeats(task_id="beat")
    yield dag


def archives() -> Iterator[DAG]:
    """Keeps the tables of archives small."""
    catalog = partial_catalog()[0]
    running = [name for name in sorted(catalog.archives) if name in catalog.streams]
    if not running:
        return
    with penstock_dag(
        "maintain_archives",
        description="expires old snapshots of archives",
        schedule="30 3 * * *",
        max_active_runs=1,
        tags=["penstock", "archive"],
        doc_md="Each night it expires snapshots of archives that are older than `keep_snapshots`, and deletes objects "
        "that no snapshot needs.",
    ) as dag:
        for name in running:
            MaintainArchive(task_id=name, archive=name)
    yield dag


def reaper() -> Iterator[DAG]:
    """Ends orphaned drivers."""
    with penstock_dag(
        "reaper",
        description="ends orphaned drivers",
        schedule="*/5 * * * *",
        max_active_runs=1,
        tags=["penstock"],
        doc_md="Every five minutes it ends drivers whose app is not declared, has no stream that is on, or has another"
        " driver.",
    ) as dag:
        EndOrphanedDrivers(task_id="reap")
    yield dag
