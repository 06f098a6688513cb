"""The documents that a sink had before its replacement are removed when that is confirmed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import catalog
from penstock.control import Control, ProgressRow, ReplacementRow
from penstock.errors import ReplacementRefused
from penstock.supervision import launch, released_code
from penstock.supervision.earlier_documents import forget_earlier_documents
from tests.chaos.projects import other_project
from tests.support.mongodb import fresh

pytestmark = pytest.mark.integration

SINK = """UPSERT INTO mongodb.`{database}`.things READ things AS JSON (n BIGINT) APP kept
AS SELECT n FROM things"""


def test_they_are_removed_by_the_code_of_the_project(
    mongodb_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh(mongodb_url) as database:
        file = tmp_path / "project" / "sql" / "sinks" / "things.sql"
        file.parent.mkdir(parents=True)
        file.write_text(SINK.format(database=database.name))
        url = f"sqlite:///{tmp_path / 'control.db'}"
        given = {"PENSTOCK_HOME": tmp_path / "home", "PENSTOCK_CONTROL_URL": url, "PENSTOCK_MONGODB_URL": mongodb_url}
        for name in ("things", "things.version-before", "things.version-before.tombstones"):
            database[name].insert_one({"_id": "1"})
        with other_project(tmp_path / "project", given):
            control = Control(url)
            control.migrate()
            control.sync(catalog.load())
            row = cast("ReplacementRow", SimpleNamespace(name="things", app="kept", digest=released_code.take(control)))
            forget_earlier_documents(control, row)
            assert len(database.list_collection_names()) == 3, "it is not known to be a sink"
            control.report([ProgressRow("things", "kept", "i", store={"destination": "mongodb"})], keep=False)
            forget_earlier_documents(control, row)
            assert database.list_collection_names() == ["things"]

            def refused(*_: Any, **__: Any) -> None:
                raise subprocess.TimeoutExpired("python", 60)

            monkeypatch.setattr(launch, "run_json_module", refused)
            with pytest.raises(
                ReplacementRefused, match=r"is confirmed, and its documents before are still in .*got: no"
            ):
                forget_earlier_documents(control, row)
            control.engine.dispose()
