"""What actions would do, as their dry runs say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.control import Actor, Control, tables
from penstock.control.repositories.captures import CaptureRow
from penstock.errors import ReleaseRefused
from penstock.monitoring.dashboard.answers.effects import capture_effects, desired_effects, release_effects
from penstock.settings import settings
from penstock.supervision.code_snapshot import digest_of, pack
from tests.unit.monitoring.overviews import row
from tests.unit.monitoring.page_moments import declared, moment

ME = Actor("me", "cli")
EDGES = [("stream bundles", "topic t")] + [("topic t", f"stream reader-{n}") for n in range(9)]
READERS = [{"name": f"reader-{n}", "kind": "stream", "app": "others"} for n in range(9)]


def test_a_stop_names_what_stops_and_what_gets_no_rows() -> None:
    data = moment([row(), row(name="other")], declared({"name": "bundles", "kind": "stream"}, *READERS, edges=EDGES))
    readers = ", ".join(f"`reader-{n}`" for n in range(7))
    assert desired_effects(data, ["bundles"], "stop") == [
        "`bundles` stops after the current batch.", f"No new rows reach {readers} and 2 more.",
    ]  # fmt: skip
    assert desired_effects(data, ["bundles", "other"], "stop")[:2] == [
        "`bundles`, `other` stop after the current batch.",
        "The driver of metrics ends, as no other stream of it is on.",
    ]  # fmt: skip
    assert desired_effects(data, ["other"], "stop")[-1] == "Nothing that is declared reads the output."
    assert desired_effects(data, ["other"], "start") == ["Nothing changes: the desired state is on already."]
    assert desired_effects(moment([row()]), ["bundles"], "stop")[-1].startswith("What reads the output is not known")


def test_a_start_says_what_is_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = moment([row(), row(name="new", batch_id=None, lag=None)])
    for stream in data.streams.values():
        monkeypatch.setitem(stream.__dict__, "desired", "off")
    assert desired_effects(data, ["bundles"], "start") == [
        "`bundles` starts.", "Not read yet, by the last report: 17 records.",
    ]  # fmt: skip
    assert desired_effects(data, ["new"], "start") == ["`new` starts.", "No batch of `new` was ever reported."]


@pytest.mark.parametrize(
    ("verb", "changes", "said"),
    [
        ("poll", {}, ["It was last polled 2 s ago."]),
        ("reconcile", {"drift": {"rows": 41_200}},
         ["It compares its table of about 41,200 rows with the topic, and writes the records that differ."]),
        ("snapshot", {}, ["It reads its table, and writes each row to its topic again, for everything that reads it."]),
        ("continue", {"phase": "refused", "why": "9 rows are gone"}, ["It accepts: 9 rows are gone"]),
        ("continue", {"phase": "polling"}, ["It waits for nothing that must be accepted: it is polling."]),
        ("poll", {"requested": "snapshot", "request_id": "r"},
         ["The request snapshot, which is not answered yet, is dropped.", "It was last polled 2 s ago."]),
    ],
)  # fmt: skip
def test_a_request_to_a_capture_says_what_it_reads(verb: str, changes: dict[str, Any], said: list[str]) -> None:
    captures = {"shops": CaptureRow("shops", **changes)}
    data = moment([row(name="shops", app="captures")], captures=captures)
    assert capture_effects(data, "shops", verb) == said
    assert capture_effects(data, "nobody", verb)[0].startswith("The capture has not reported yet")


def test_a_release_says_which_files_differ(control: Control, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = {"jobs/a.py": b"1\n"}, {"jobs/a.py": b"2\n", "jobs/b.py": b"\n"}
    project = home.parent / "project"
    for path, content in after.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_bytes(content)
    monkeypatch.setenv("PENSTOCK_PROJECT", str(project))
    settings.cache_clear()
    with control.begin() as c:
        c.execute(tables.app.insert().values(name="metrics", release_seq=0, restarts=0))
    control.store_snapshot(digest_of(before), pack(before))
    control.record_first_code("metrics", 0, digest_of(before), ME)
    data = moment([row()])
    differs, restarted, checked = release_effects(control, data, "metrics", "")
    assert differs == "Compared with release 0, 2 files of the code on the disk differ: `jobs/a.py`, `jobs/b.py`."
    assert restarted == "Restarted with the code on the disk: `bundles`."
    assert "is checked" in checked
    same, *_ = release_effects(control, data, "metrics", "0")
    assert same == "It is the code of release 0: the driver is replaced, and nothing else changes."
    with pytest.raises(ReleaseRefused, match="no release 9"):
        release_effects(control, data, "metrics", "9")
