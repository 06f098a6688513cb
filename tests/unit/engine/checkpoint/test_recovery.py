"""Checkpoints that lost files, beside the mark of what is written: mended for certain, or the offsets in doubt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from penstock.engine.checkpoint import ownership
from penstock.engine.checkpoint.layout import PlannedBatch
from penstock.engine.checkpoint.offset_log import BatchPlan, commit_entry
from penstock.engine.checkpoint.recovery import CheckpointRecovery, is_unreadable_state
from penstock.engine.commit.output_stores import OutputStores
from penstock.errors import Blocked, PenstockError
from penstock.model.output import CommitMarker

Files = dict[str, str]


class Folder:
    """A checkpoint's files in memory; an empty text is a damaged file."""

    path = "/checkpoints/s"
    uri = "file:/checkpoints/s"

    def __init__(self, files: Files) -> None:
        self.files = files

    def list_names(self, folder: str) -> list[str]:
        below = (name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/"))
        return sorted({name.split("/")[0] for name in below})

    def list_numbers(self, name: str) -> list[int]:
        return sorted(int(entry) for entry in self.list_names(name) if entry.isdigit())

    def read_verified(self, name: str) -> str | None:
        return self.files.get(name)

    def replace(self, name: str, text: str) -> None:
        self.files[name] = text

    def delete(self, name: str) -> None:
        del self.files[name]

    def list_files(self, folder: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{folder}/")]

    def delete_folder(self, folder: str) -> None:
        self.files = {name: text for name, text in self.files.items() if not name.startswith(f"{folder}/")}


def plan(n: int, *, end: int | None = None) -> str:
    metadata = {"batchWatermarkMs": n * 100, "batchTimestampMs": n * 1000, "conf": {}}
    return f'v1\n{json.dumps(metadata)}\n{{"a":{{"0":{n * 10 if end is None else end}}}}}\n-'


def checkpoint(planned: int, done: int) -> Files:
    """The log up to some batches."""
    made = {"metadata": '{"id":"q"}', "sources/0/0": 'v1\n{"a":{"0":0}}'}
    made |= {f"offsets/{n}": plan(n) for n in range(planned + 1)}
    return made | {f"commits/{n}": commit_entry((n + 1) * 100) for n in range(done + 1)}


def mark(batch: int) -> CommitMarker:
    plans = {n: plan(n) for n in (batch - 1, batch) if n >= 0}
    return CommitMarker("q", batch, {"a": {0: batch * 10}}, plans=plans)


def mended(files: Files, of: CommitMarker, *, stateful: bool = True, anew: bool = False) -> Files:
    folder = Folder(dict(files))
    said = CheckpointRecovery("s", folder, of, stateful=stateful, anew=anew).run()  # type: ignore[arg-type]
    assert bool(said) == (folder.files != files)
    return folder.files


def lost(*names: str) -> Callable[[Files], Files]:
    return lambda files: {name: text for name, text in files.items() if name not in names}


def empty(*names: str) -> Callable[[Files], Files]:
    return lambda files: {name: "" if name in names else text for name, text in files.items()}


def cut(*names: str) -> Callable[[Files], Files]:
    return lambda files: {name: text[: -len(text) // 3] if name in names else text for name, text in files.items()}


@pytest.mark.parametrize(("planned", "done", "written"), [(5, 5, 5), (5, 4, 5), (5, 4, 4)])
def test_a_whole_log_is_left_as_it_is(planned: int, done: int, written: int) -> None:
    files = checkpoint(planned, done)
    assert mended(files, mark(written)) == files


@pytest.mark.parametrize("damage", [lost, empty, cut], ids=["gone", "empty", "cut"])
@pytest.mark.parametrize(
    "names",
    [
        ("commits/5",),
        ("offsets/5",),
        ("offsets/5", "commits/5"),
        ("commits/4", "commits/5"),
        ("offsets/5", "commits/4", "commits/5"),
        ("offsets/4",),
        ("metadata",),
        ("metadata", "offsets/5", "commits/5"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("stateful", [True, False], ids=["state", "no state"])
def test_what_the_end_of_a_log_lost_is_put_back(
    damage: Callable[..., Callable[[Files], Files]], names: tuple[str, ...], *, stateful: bool
) -> None:
    files = damage(*names)(checkpoint(5, 5))
    # A batch is run again where its end is not certain.
    expected = checkpoint(5, 4 if "commits/5" in names else 5)
    if not {"offsets/5", "commits/4"} & files.keys():
        expected = checkpoint(4, 3)
    elif "offsets/5" not in files and not stateful:
        # Nothing needs the batch to run again: it has ended, with the watermark of its plan.
        expected = {**checkpoint(5, 4), "commits/5": commit_entry(500)}
    found = mended(files, mark(5), stateful=stateful)
    assert {**found, "metadata": json.loads(found["metadata"])} == {**expected, "metadata": {"id": "q"}}


def test_a_plan_of_which_nothing_is_written_is_made_anew() -> None:
    assert mended(empty("offsets/5")(checkpoint(5, 4)), mark(4)) == checkpoint(4, 4)


def test_the_same_number_with_other_offsets_gets_those_that_are_written() -> None:
    files = {**checkpoint(4, 4), "offsets/5": plan(5, end=99)}
    assert mended(files, mark(5)) == checkpoint(5, 4)


def test_an_older_log_goes_on_behind_the_mark_where_there_is_no_state() -> None:
    found = mended(checkpoint(2, 2), mark(5), stateful=False)
    assert found["offsets/5"] == plan(5)
    assert "commits/5" in found
    assert "offsets/6" not in found


@pytest.mark.parametrize("done", [3, 4])
def test_an_older_log_goes_on_with_state_as_far_as_the_plans_are_known(done: int) -> None:
    found = mended(checkpoint(done, done), mark(5))
    assert found == checkpoint(done + 1, done)


def test_a_batch_that_the_older_log_had_begun_is_run_first() -> None:
    """For its state: its output is there."""
    assert mended(checkpoint(4, 3), mark(5)) == checkpoint(4, 3)


@pytest.mark.parametrize(
    ("files", "of", "said"),
    [
        (checkpoint(2, 2), mark(5), r"older checkpoint.*a\[0\] 20 to 49"),
        (checkpoint(5, 5), mark(3), r"no commit marker.*a\[0\] 30 to 49"),
        (checkpoint(5, 5), CommitMarker("", -1, {}), "no commit marker.*that ended is 5"),
        (checkpoint(5, 5), CommitMarker("p", 7, {}), "of another query.*q, and p wrote up to batch 7"),
        ({**checkpoint(5, 5), "offsets/5": plan(5, end=70)}, mark(5), r"other offsets.*a\[0\] 50 to 69"),
        (empty("offsets/4", "offsets/5")(checkpoint(5, 5)), CommitMarker("q", 5, {"a": {0: 50}}), "damaged.*offsets/5"),
        (empty("metadata")(checkpoint(5, 5)), CommitMarker("", -1, {}), "damaged.*metadata"),
        (lost("metadata")(checkpoint(5, 5)), CommitMarker("", -1, {}), "damaged.*metadata"),
        (empty("offsets/4")(checkpoint(5, 5)), CommitMarker("", -1, {}), "damaged.*offsets/4"),
    ],
    ids=[
        "older",
        "marks cut",
        "marks gone",
        "another query",
        "other offsets",
        "a mark without plans",
        "marks and the id empty",
        "marks and the id gone",
        "marks gone and a plan empty",
    ],
)
def test_what_is_not_certain_stops_the_stream_and_names_the_offsets(files: Files, of: CommitMarker, said: str) -> None:
    folder = Folder(dict(files))
    with pytest.raises(Blocked) as e:
        CheckpointRecovery("s", folder, of, stateful=True).run()  # type: ignore[arg-type]
    assert re.search(said, str(e.value), re.DOTALL)
    assert folder.files == files


def test_a_first_start_and_one_that_was_wanted_anew_need_no_mark() -> None:
    assert mended({}, CommitMarker("", -1, {})) == {}
    begun = {"metadata": '{"id":"r"}', "offsets/0": plan(0)}
    assert mended({}, mark(5), anew=True) == {}
    assert mended(begun, mark(5), anew=True) == begun
    assert mended({**begun, "offsets/0": ""}, mark(5), anew=True) == {"metadata": '{"id":"r"}'}
    assert mended({"metadata": ""}, CommitMarker("", -1, {})) == {}


def test_state_of_a_batch_that_runs_again_is_written_again() -> None:
    state = {f"state/0/1/left/{n}.changelog": "x" for n in (4, 5)} | {
        "state/0/0/5.zip": "x",
        "state/0/_metadata/s": "x",
    }
    torn = {"state/0/1/left/6.changelog": "x", "state/0/0/6.zip": "x"}
    assert mended({**checkpoint(5, 4), **state, **torn}, mark(4)) == {**checkpoint(5, 4), **state}
    assert mended({**checkpoint(5, 4), **state, **torn}, mark(5)) == {**checkpoint(5, 4), **state}
    assert mended({**checkpoint(5, 5), **state, **torn}, mark(5)) == {**checkpoint(5, 5), **state, **torn}


def test_state_of_a_moved_checkpoint_finds_its_schemas() -> None:
    """Those of `transformWithState` are named by their whole path."""

    def metadata(folder: str) -> str:
        path = f"{folder}/state/1/_stateSchema/default/0_f3"
        step = {"operatorInfo": {"operatorId": 1}, "stateStoreInfo": [{"stateSchemaFilePaths": [path]}]}
        return f"v2\n{json.dumps(step)}"

    name = "state/1/_metadata/v2/0"
    here = {**checkpoint(5, 5), name: metadata("file:/checkpoints/s")}
    assert mended(here, mark(5)) == here
    for before in ("file:/old/state/s", "s3a://bucket/s"):
        assert mended({**here, name: metadata(before)}, mark(5)) == here
    for damaged in ("", "v2\n{", "v2"):
        assert mended({**here, name: damaged}, mark(5)) == {**here, name: damaged}


def test_what_a_first_batch_had_begun_goes_with_its_plan() -> None:
    left = {"state/0/0/1.changelog": "x", "offsets/.0.1f.tmp": "x", "penstock.json": "x"}
    began = {"metadata": '{"id":"q"}', "penstock.json": "x"}
    for of in (CommitMarker("", -1, {}), CommitMarker("q", -1, {"a": {0: 7}})):
        assert mended({**began, **left}, of) == began
        assert mended({**began, **left, "offsets/0": ""}, of) == began
    kept = {**began, "offsets/.0.1f.tmp": "x", "offsets/0": plan(0)}
    assert mended({**began, **left, "offsets/0": plan(0)}, CommitMarker("", -1, {})) == kept
    # With a mark the plan of its batch is put back, or it is not certain what the state holds.
    assert mended({**began, **left}, mark(0)) == kept
    with pytest.raises(Blocked, match="its state lacks what was read"):
        mended({**began, **left}, mark(5))


def test_a_checkpoint_that_is_gone_writes_nothing_twice() -> None:
    """Its disk is not mounted, or the settings name another place: to begin anew would write everything once more."""
    with pytest.raises(Blocked, match=r"is not there, though it wrote up to batch 5.*is empty.*mounted"):
        mended({}, mark(5))
    # The first two batches are written: neither is run again, whatever its topic holds now.
    first = mended({}, mark(1), stateful=False)
    assert {name for name in first if "/" in name} == {"offsets/0", "offsets/1", "commits/0", "commits/1"}
    assert mended({}, mark(5), stateful=False) == {
        "metadata": '{"id": "q"}',
        **{f"offsets/{n}": plan(n) for n in (4, 5)},
        **{f"commits/{n}": commit_entry(500) for n in (4, 5)},
    }
    with pytest.raises(Blocked, match="another query"):
        mended({"metadata": '{"id":"r"}', "offsets/0": plan(0)}, mark(5))


def moved(files: Files, place: str, of: CommitMarker) -> str:
    """What the marks of a checkpoint are called that starts in a place."""
    folder = Folder(files)
    folder.path = place
    return ownership.claim("s", folder, of)  # type: ignore[arg-type]


def test_a_checkpoint_that_is_moved_goes_on_and_the_copy_left_behind_does_not() -> None:
    here = checkpoint(5, 5)
    first = moved(here, "s3://a/s", mark(5))
    there = dict(here)
    # Carried on twice without a batch between.
    assert moved(there, "s3://b/s", replace(mark(5), checkpoint=first)) != first
    last = moved(there, "s3://c/s", replace(mark(5), checkpoint=first))
    assert moved(there, "s3://c/s", replace(mark(6), checkpoint=last)) == last
    assert moved(here, "s3://a/s", replace(mark(5), checkpoint=first)) == first
    with pytest.raises(Blocked, match=r"(?s)goes on from a copy.*s3://a/s.*s3://c/s"):
        moved(here, "s3://a/s", replace(mark(6), checkpoint=last))
    assert moved(here, "s3://a/s", replace(mark(6), query="another", checkpoint=last)) == first


def test_a_checkpoint_that_lost_its_name_goes_on_where_it_wrote_last_and_nowhere_else() -> None:
    first = moved(checkpoint(5, 5), "s3://a/s", mark(5))
    lost = checkpoint(5, 5)
    again = moved(lost, "s3://a/s", replace(mark(5), checkpoint=first))
    assert again != first
    # Before it has written another batch.
    assert moved(lost, "s3://a/s", replace(mark(5), checkpoint=first)) == again
    with pytest.raises(Blocked, match="goes on from a copy"):
        moved(checkpoint(5, 5), "s3://b/s", replace(mark(5), checkpoint=first))


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("Lost task 0.0 in stage 2.0: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred", True),
        ("Lost task 0.0 in stage 2.0: [CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] it is held", False),
        ("[STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] cannot restart", True),
        ("[CAST_INVALID_INPUT] The value '[CANNOT_LOAD_STATE_STORE.X]' of the type STRING", False),
    ],
)
def test_state_that_cannot_be_read_is_told_from_a_record_that_says_so(said: str, state: bool) -> None:
    error = ValueError(said)
    thrown = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getName=lambda: "org.apache.spark.SparkException"),
        getMessage=lambda: said,
        getCause=lambda: None,
    )
    error.java_exception = thrown  # type: ignore[attr-defined]
    assert is_unreadable_state(error) == state


def planned(n: int, *, end: int | None = None, before: str = "") -> PlannedBatch:
    of, last = BatchPlan.read(plan(n, end=end)), BatchPlan.read(before or plan(n - 1))
    assert of
    return PlannedBatch(n, 0, 0, {}, {"a": {0: n * 10 if end is None else end}}, of, last)


BATCHES = SimpleNamespace(_stream=SimpleNamespace(name="s"))


@pytest.mark.parametrize(("batch", "written"), [(planned(2), True), (planned(1), True), (planned(3), False)])
def test_a_batch_is_written_if_its_offsets_are(batch: PlannedBatch, *, written: bool) -> None:
    assert OutputStores._has_batch(BATCHES, mark(2), batch) == written  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "batch", [planned(2, end=25), planned(1, end=5), planned(3, before=plan(2, end=25)), planned(5)]
)
def test_a_batch_of_a_written_number_and_other_offsets_is_neither_left_out_nor_written(batch: PlannedBatch) -> None:
    with pytest.raises(PenstockError, match=r"batch \d was planned with other offsets than are written.*of batch 2"):
        OutputStores._has_batch(BATCHES, mark(2), batch)  # type: ignore[arg-type]
