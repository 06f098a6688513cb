"""Checkpoints in a real object store: what is written there once, what is found missing, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.devstack import doctor
from penstock.devstack.platform import Platform
from penstock.devstack.servers.s3 import S3Server
from penstock.engine.checkpoint import s3a
from penstock.engine.checkpoint.layout import PlannedBatch
from penstock.engine.operations import removal
from penstock.engine.state.fold import FoldContext
from penstock.engine.state.fold_store import FoldBatch, FoldStore
from penstock.engine.state.state_files import RemoteStateFiles, state_files
from penstock.engine.state.state_part import HASH, DamagedState, StatePart
from penstock.errors import Blocked, LeaseLost, PenstockError
from penstock.host import ports
from penstock.object_store.bucket import Bucket
from penstock.settings import settings
from tests.support.s3_store import created, endpoint_of, server

pytestmark = pytest.mark.integration

ROOT = "s3a://state/checkpoints"
FIELDS: list[pa.Field[Any]] = [pa.field(HASH, pa.int64()), pa.field("who", pa.string()), pa.field("total", pa.int64())]
LAYOUT = pa.schema(FIELDS)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with server(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture
def store(part: S3Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:  # noqa: ARG001
    at = endpoint_of(part)
    given = {"S3_URL": at.url, "S3_ACCESS_KEY": at.access_key, "S3_SECRET_KEY": at.secret_key, "CHECKPOINTS": ROOT}
    told(monkeypatch, **given)
    made = Bucket(at, "state", "checkpoints")
    made.ensure_exists()
    for one in made.list_objects(""):
        made.delete(one.key)
    return made


def told(monkeypatch: pytest.MonkeyPatch, **given: str) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    settings.cache_clear()


def found() -> doctor.DoctorCheck:
    [check] = [one for one in doctor.examine(Platform(settings())) if one.name == "Checkpoints"]
    return check


def test_the_doctor_names_what_is_wrong_with_the_store(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (found().state, found().found) == ("ok", f"{ROOT} can be written, read and deleted from")
    assert store.list_objects("") == []
    told(monkeypatch, CHECKPOINTS="s3a://nowhere/checkpoints")
    assert (found().state, found().found.split(";")[0]) == ("fail", "there is no bucket nowhere")
    with pytest.raises(PenstockError, match="there is no bucket nowhere"):
        s3a.store_below(f"{settings().checkpoint_root}/one").ensure_exists()
    told(monkeypatch, CHECKPOINTS=ROOT, S3_SECRET_KEY="another")
    assert found().state == "fail"
    assert "refuses the access key" in found().found
    with pytest.raises(PenstockError, match="refuses the access key"):
        s3a.store_below(f"{ROOT}/one").ensure_exists()
    told(monkeypatch, S3_URL=f"http://127.0.0.1:{ports.free_port()}")
    assert found().state == "fail"
    assert "does not answer" in found().found


def test_the_doctor_names_a_folder_that_cannot_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (found().state, found().found) == ("ok", f"{home}/checkpoints can be written")
    (tmp_path / "file").touch()
    told(monkeypatch, CHECKPOINTS=str(tmp_path / "file" / "checkpoints"))
    assert found().state == "fail"


def test_removal_finds_and_removes_the_objects_of_a_stream(store: Bucket, home: Path) -> None:
    for key in ("gone/offsets/0", "gone/metadata", "gone.before/metadata", "gone-not/metadata"):
        store.put(key, b"x")
    beside = [home / "tables" / "1" / "gone.tables", home / "folds" / "1" / "gone"]
    for folder in beside:
        folder.mkdir(parents=True)
    left = removal.folders("gone")
    assert left.keys() == {f"{ROOT}/gone", f"{ROOT}/gone.before", *map(str, beside)}
    for remove in left.values():
        remove()
    assert [one.key for one in store.list_objects("")] == ["gone-not/metadata"]
    assert not any(folder.exists() for folder in beside)


class Fold:
    """A fold's state as driver and worker tend it, without Spark between them."""

    def __init__(self, store: Bucket, cache: Path) -> None:
        self.told: dict[str, str] = {}
        prefix = f"{store.prefix}/sums"
        spark = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=self.told.__setitem__))
        self.driver = FoldStore(
            "sums", cast("Any", spark), f"{ROOT}/sums",
            lambda name, text: created(store.endpoint, store.bucket, f"{prefix}/{name}", text.encode()),
        )  # fmt: skip
        files = state_files(f"{ROOT}/sums", str(cache))
        assert isinstance(files, RemoteStateFiles)
        self.worker = files.below("sums")

    def open(self, done: int) -> None:
        self.driver.open(FoldContext(late=False, folds={"sums": cast("Any", None)}), done)

    def batch(self, number: int, totals: dict[int, int], *, dies: bool = False) -> PlannedBatch:
        """A batch that sets the totals of some keys in part 0; dies: before the driver has kept it."""
        plan = SimpleNamespace(watermark_ms=0)
        batch = PlannedBatch(number, 0, 0, {}, {}, cast("Any", plan), None)
        self.driver.begin_batch(batch)
        [said] = self.told.values()
        mine = FoldBatch(**json.loads(said))
        before = mine.manifest_before(self.worker, 0)
        part = StatePart(self.worker.fetch(0, before.files), LAYOUT, before)
        hashes = np.array(sorted(totals), np.int64)
        was = len(part.find(hashes))
        rows = pa.table(
            {
                HASH: hashes.tolist(),
                "who": [str(n) for n in hashes],
                "total": list(map(totals.__getitem__, sorted(totals))),
            },
            schema=LAYOUT,
        )
        made = part.change(rows, np.empty(0, np.int64), was, 0, lambda rows: rows)
        self.worker.publish(0, mine.manifest_name, before, made)
        if not dies:
            self.driver.commit_batch(batch)
        return batch

    def state(self, behind: int) -> dict[Any, Any]:
        manifest = self.worker.load_parts(behind)["0"]
        hashes = np.arange(100, dtype=np.int64)
        rows = StatePart(self.worker.fetch(0, manifest.files), LAYOUT, manifest).find(hashes)
        return dict(zip(rows["who"].to_pylist(), rows["total"].to_pylist(), strict=True))


def test_another_host_reads_the_fold_state_of_the_last_committed_batch(store: Bucket, tmp_path: Path) -> None:
    here = Fold(store, tmp_path / "here")
    here.open(-1)
    for number in range(8):
        here.batch(number, dict.fromkeys(range(number, 20), number))
    assert here.driver.size
    assert here.driver.size[0] == 20
    wanted = {str(n): min(n, 7) for n in range(20)}
    # A try that wrote its part, and whose driver died then.
    here.batch(8, dict.fromkeys(range(20), 99), dies=True)
    there = Fold(store, tmp_path / "there")
    there.open(7)
    assert there.state(7) == wanted
    there.batch(8, {0: 100})
    assert there.state(8) == {**wanted, "0": 100}
    # Spark may have lost the end of the last batch: it runs again.
    there.open(7)
    there.batch(8, {0: 100})
    assert there.state(8) == {**wanted, "0": 100}
    # Of what is no more needed nothing is left.
    names = [one.key for one in store.list_objects("sums/folds/sums")]
    top = sorted(name.rpartition("/")[2] for name in names if name.count("/") == 3)
    assert top[:-1] == [f"{n}.json" for n in range(5, 9)]
    assert top[-1].startswith("opened-")
    there.open(8)
    known = {file.name for n in range(5, 9) for file in there.worker.load_parts(n)["0"].files}
    files = {one.key.rpartition("/")[2] for one in store.list_objects("sums/folds/sums/0")}
    assert files == known


@pytest.mark.parametrize("wakes_first", [False, True], ids=["after its successor", "before it"])
def test_the_first_of_two_drivers_commits_the_batch_of_a_fold(store: Bucket, tmp_path: Path, wakes_first: bool) -> None:
    """One is paused when its workers have put their parts, and wakes up behind the other's batch, or in the midst."""
    paused_driver, successor = Fold(store, tmp_path / "sleeper"), Fold(store, tmp_path / "heir")
    paused_driver.open(-1)
    paused_driver.batch(0, {1: 0, 2: 0})
    late = paused_driver.batch(1, {1: 1}, dies=True)
    successor.open(0)
    successor.batch(1, {1: 1})
    # The parts of the successor's next batch are written.
    ahead = successor.batch(2, {2: 2}, dies=True)
    with pytest.raises(LeaseLost, match="another driver keeps its state, so that of batch 1 is not kept"):
        paused_driver.driver.commit_batch(late)
    successor.driver.commit_batch(ahead)
    assert (successor.state(1), successor.state(2)) == ({"1": 1, "2": 0}, {"1": 1, "2": 2})
    # One that is paused when it has seen that the state is its own.
    successor.open(2)
    late = successor.batch(3, {1: 3}, dies=True)
    third = Fold(store, tmp_path / "third")
    create, mine = successor.driver._create, list[PlannedBatch]()

    def paused(name: str, text: str) -> bool:
        third.open(2)
        mine.append(third.batch(3, {1: 3}, dies=wakes_first))
        return create(name, text)

    successor.driver._create = paused
    if not wakes_first:
        with pytest.raises(LeaseLost):
            successor.driver.commit_batch(late)
    else:
        successor.driver.commit_batch(late)
        with pytest.raises(LeaseLost):
            third.driver.commit_batch(mine[0])
        third.open(2)
        third.batch(3, {1: 3})
    third.batch(4, {2: 4})
    assert third.state(4) == {"1": 3, "2": 4}
    third.open(4)


def test_missing_fold_state_is_an_error(store: Bucket, tmp_path: Path) -> None:
    here = Fold(store, tmp_path / "here")
    here.open(-1)
    here.batch(0, {1: 1})
    with pytest.raises(Blocked, match="the checkpoint of stream sums is damaged"):
        here.open(3)
    [file] = [one for one in store.list_objects("sums/folds/sums/0") if one.key.endswith(".arrow")]
    store.put(file.key, b"x" * file.size)
    with pytest.raises(DamagedState, match="is changed"):
        Fold(store, tmp_path / "there").state(0)
    store.delete(file.key)
    with pytest.raises(Blocked, match="is damaged"):
        here.open(0)
    store.put("sums/folds/sums/0.json", b"{}\n1\n")
    with pytest.raises(Blocked, match="cannot be read"):
        here.open(0)
