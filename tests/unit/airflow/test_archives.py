"""The DAG that keeps the tables of archives small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.archive import catalog as tables
from penstock.archive import maintenance
from penstock.archive.stream import output_of
from penstock.control import connect
from penstock.errors import DeclarationError, Wait
from penstock.streams import Archive, Topic
from tests.chaos.projects import other_project
from tests.support.control_tables import create_tables
from tests.support.small_archive import batch, local_store, open_writer, write_batch

DECLARED = """from datetime import timedelta
from penstock.streams import Archive, Topic

KEPT = Archive("kept", Topic("t"), bucket="lake", prefix="kept", keep_snapshots=timedelta(0))
"""
TO = replace(output_of(Archive("kept", Topic("t"), bucket="lake", prefix="kept")), snapshot_interval=timedelta(0))


@pytest.fixture
def project(tmp_path: Path, airflow_home: None) -> Iterator[Path]:  # noqa: ARG001
    folder = tmp_path / "project" / "jobs" / "shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "kept.py").write_text(DECLARED)
    variables = {"PENSTOCK_HOME": str(tmp_path / "home"), "PENSTOCK_S3_URL": "http://store.example"}
    with local_store(tmp_path / "store"), other_project(tmp_path / "project", variables):
        create_tables(connect())
        yield tmp_path / "project"


@pytest.mark.usefixtures("project")
def test_each_archive_that_runs_has_a_task_that_removes_what_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    from penstock.airflow.dags.operations import archives

    [dag] = archives()
    assert (dag.dag_id, dag.task_ids) == ("maintain_archives", ["kept"])
    task: Any = dag.get_task("kept")
    assert task.execute({}) == []
    writer = open_writer(TO)
    for n in range(3):
        write_batch(writer, TO, batch(n))
    [removed] = task.execute({})
    assert removed == {"table": "penstock.kept", "snapshots": 3, "objects": 0, "bytes": 0}
    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "maintain", lambda _: (_ for _ in ()).throw(Wait("away", seconds=1.0)))
        with pytest.raises(AirflowSkipException, match="not now: away"):
            task.execute({})
    tables._opened.cache_clear()


def test_an_archive_whose_file_is_invalid_is_not_maintained_and_the_file_is_named(project: Path) -> None:
    from penstock.airflow.archives import MaintainArchive

    (project / "jobs" / "shop" / "kept.py").write_text(DECLARED.replace("timedelta(0)", "nothing"))
    with pytest.raises(DeclarationError, match=r"archive kept is not maintained: .*got: .*/shop/kept\.py .*nothing"):
        MaintainArchive(task_id="t", archive="kept").execute({})


def test_a_project_without_an_object_store_has_no_such_dag(airflow_home: None, tmp_path: Path) -> None:  # noqa: ARG001
    from penstock.airflow.dags.operations import archives

    folder = tmp_path / "project" / "jobs" / "shop"
    folder.mkdir(parents=True)
    (folder / "kept.py").write_text(DECLARED)
    with other_project(tmp_path / "project", {"PENSTOCK_HOME": str(tmp_path / "home")}):
        assert list(archives()) == []
