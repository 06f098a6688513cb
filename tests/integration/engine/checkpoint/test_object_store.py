"""Checkpoints in a real object store: what is written there once, what is found missing, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from tests.support.s3_store import created, server, where

pytestmark = pytest.mark.integration

ROOT = "s3a://state/checkpoints"
FIELDS: list[pa.Field[Any]] = [pa.field(HASH, pa.int64()), pa.field("who", pa.string()), pa.field("total", pa.int64())]
LAYOUT = pa.schema(FIELDS)
# Two writers that look before either has written, as a driver and one that wakes up behind its lease would.
WRITERS = """
import json, sys
from py4j.protocol import Py4JJavaError
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.jvm import bridge
from penstock.engine.jvm.hadoop_fs import HadoopFolder as Folder
from penstock.engine.session import open_session
spark = open_session("writers")
at = spark._jvm.org.apache.hadoop.fs.Path
manager = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(
    at(sys.argv[1]), spark._jsparkSession.sessionState().newHadoopConf())
said = []
for overwrite in (False, True):
    file = at(f"{sys.argv[1]}/{overwrite}")
    writers = [manager.createAtomic(file, overwrite) for _ in range(2)]
    given_up = manager.createAtomic(at(f"{sys.argv[1]}/given-up"), overwrite)
    given_up.write(b"half")
    given_up.cancel()
    for text, writer in zip(("first", "second"), writers):
        writer.write(text.encode())
        try:
            writer.close()
            said.append("written")
        except Py4JJavaError as e:
            said.append(e.java_exception.getClass().getSimpleName())
folder = Folder(spark, sys.argv[1])
said += [folder.read("False"), folder.read("True"), folder.read_verified("missing"), sorted(folder.list_names("."))]
said += [folder.create("once", text) for text in ("mine", "another's")] + [folder.read("once")]
folder.replace("False", "third")
folder.move(f"{sys.argv[1]}.before")
said += [folder.exists(), Folder(spark, f"{sys.argv[1]}.before").read("False")]
checkpoint = Checkpoint(spark, sys.argv[1], "sums")
checkpoint.check_reachable()
for text in ("{}", '{"starts": {}}'):
    checkpoint.request_reset(text)
    waits = checkpoint.pending_reset()
    checkpoint.activate_pending_reset()
    said.append(checkpoint.active_reset() == waits == text and checkpoint.pending_reset() is None)
said.append(Folder(spark, f"{sys.argv[1]}/sums.before").read("penstock-reset.json"))
sys.stdout.write("\\n" + json.dumps(said))
bridge.stop_jvm(spark)
"""


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with server(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture
def store(part: S3Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:  # noqa: ARG001
    at = where(part)
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


def test_of_two_writers_of_an_entry_the_store_takes_one(store: Bucket) -> None:
    command = [sys.executable, "-c", WRITERS, f"{ROOT}/one/commits"]
    done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == [
        "written", "FileAlreadyExistsException", "written", "written",
        "first", "second", None, ["False", "True"], True, False, "mine", False, "third", True, True, "{}",
    ]  # fmt: skip
    assert store.endpoint.secret_key not in done.stdout + done.stderr


def test_what_is_wrong_with_the_store_is_one_sentence(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_folder_that_cannot_be_written_is_told(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (found().state, found().found) == ("ok", f"{home}/checkpoints can be written")
    (tmp_path / "file").touch()
    told(monkeypatch, CHECKPOINTS=str(tmp_path / "file" / "checkpoints"))
    assert found().state == "fail"


def test_what_a_stream_leaves_in_the_store_is_found_and_removed(store: Bucket, home: Path) -> None:
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


def test_the_state_of_a_fold_goes_on_elsewhere_behind_the_batch_that_ended(store: Bucket, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("wakes_first", [False, True], ids=["behind its heir", "before it"])
def test_of_two_drivers_that_keep_a_batch_of_a_fold_the_first_counts(
    store: Bucket, tmp_path: Path, wakes_first: bool
) -> None:
    """One is paused when its workers have put their parts, and wakes up behind the other's batch, or in the midst."""
    sleeper, heir = Fold(store, tmp_path / "sleeper"), Fold(store, tmp_path / "heir")
    sleeper.open(-1)
    sleeper.batch(0, {1: 0, 2: 0})
    late = sleeper.batch(1, {1: 1}, dies=True)
    heir.open(0)
    heir.batch(1, {1: 1})
    # Of the heir's next batch the parts are there.
    ahead = heir.batch(2, {2: 2}, dies=True)
    with pytest.raises(LeaseLost, match="another driver keeps its state, so that of batch 1 is not kept"):
        sleeper.driver.commit_batch(late)
    heir.driver.commit_batch(ahead)
    assert (heir.state(1), heir.state(2)) == ({"1": 1, "2": 0}, {"1": 1, "2": 2})
    # One that is paused when it has seen that the state is its own.
    heir.open(2)
    late = heir.batch(3, {1: 3}, dies=True)
    third = Fold(store, tmp_path / "third")
    create, mine = heir.driver._create, list[PlannedBatch]()

    def paused(name: str, text: str) -> bool:
        third.open(2)
        mine.append(third.batch(3, {1: 3}, dies=wakes_first))
        return create(name, text)

    heir.driver._create = paused
    if not wakes_first:
        with pytest.raises(LeaseLost):
            heir.driver.commit_batch(late)
    else:
        heir.driver.commit_batch(late)
        with pytest.raises(LeaseLost):
            third.driver.commit_batch(mine[0])
        third.open(2)
        third.batch(3, {1: 3})
    third.batch(4, {2: 4})
    assert third.state(4) == {"1": 3, "2": 4}
    third.open(4)


def test_state_that_is_missing_in_the_store_is_told(store: Bucket, tmp_path: Path) -> None:
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
