"""The present version goes on with the checkpoints of released versions, and writes what they would have written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.errors import Blocked
from tests.support.saved_checkpoints import SavedCheckpoint, heartbeat_secret, saved_checkpoints

pytestmark = pytest.mark.integration

SAVED = saved_checkpoints()
NEWEST = {saved.kind: saved for saved in SAVED if saved.version == SAVED[-1].version}
# Each format of state once: of Spark's aggregates, of its timers, and of folds.
QUICK = [NEWEST[kind] for kind in ("updates", "timers", "python-fold")]
# As docs/operations.md says: a record that was late is not late where all are read at once, and its window counts it;
# tables are read as they are now.
INEXACT = ("sessions-in-hours", "table-join")


@pytest.fixture(autouse=True)
def _heartbeats_are_valid() -> Iterator[None]:
    with heartbeat_secret():
        yield


@pytest.mark.parametrize(
    "saved",
    [pytest.param(saved, id=str(saved), marks=() if saved in QUICK else pytest.mark.long) for saved in SAVED],
)
def test_a_stream_goes_on_with_its_checkpoint(
    saved: SavedCheckpoint, spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    saved.restore(fresh_broker.bootstrap, tmp_path)
    saved.send_rest(fresh_broker.bootstrap)
    assert saved.run_on(spark, fresh_broker.bootstrap, tmp_path) == saved.history.after


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param(saved, id=str(saved), marks=() if saved.kind == "updates" else pytest.mark.long)
        for saved in SAVED
        if saved.kind not in INEXACT
    ],
)
def test_a_stream_is_replaced_by_an_equal_version(
    saved: SavedCheckpoint, spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    """So goes on what a version of Penstock or Spark cannot read any more: only the topics and the marker are used."""
    saved.restore(fresh_broker.bootstrap, tmp_path)
    compared = saved.replace_on(spark, fresh_broker.bootstrap, tmp_path)
    assert (compared.only_new, compared.only_running) == (0, 0)
    # Two rows of one key in one batch have no order.
    assert compared.different == (saved.kind == "stateless")
    saved.send_rest(fresh_broker.bootstrap)
    assert saved.run_on(spark, fresh_broker.bootstrap, tmp_path) == saved.history.after


@pytest.mark.long
@pytest.mark.parametrize("kind", ["stateless", "final-windows", "left-outer-join", "timers", "python-fold"])
def test_a_batch_that_was_written_and_not_committed_runs_again_for_its_state(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path, kind: str
) -> None:
    """The driver was killed behind the transaction of its last batch, and the next one is of another version."""
    saved = NEWEST[kind]
    saved.restore(fresh_broker.bootstrap, tmp_path)
    saved.send_rest(fresh_broker.bootstrap)
    (tmp_path / saved.history.stream / "commits" / str(saved.history.marker.batch)).unlink()
    assert saved.run_on(spark, fresh_broker.bootstrap, tmp_path) == saved.history.after


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def change(old: str, new: str) -> Callable[[Path], None]:
    def change_text(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        # Otherwise it is damaged, and restored from the commit marker.
        path.with_name(f".{path.name}.crc").unlink()

    return change_text


@pytest.mark.parametrize(
    ("kind", "file", "damage", "error", "message"),
    [
        pytest.param(
            "updates", "state/0/*/2.changelog", flip_byte, StreamingQueryException, "Checksum error",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "python-fold", "folds/totals/1/*.arrow", flip_byte, Blocked, "is damaged", marks=pytest.mark.long
        ),
        pytest.param(
            "updates", "offsets/1", change('"0":2', '"0":1'), Blocked, "other offsets in its checkpoint",
            marks=pytest.mark.long,
        ),
        ("updates", "plan.json", change("max(amount)", "min(amount)"), Blocked, "has state of other code"),
    ],
    ids=["state of Spark", "state of a fold", "offsets", "plan"],
)  # fmt: skip
def test_a_changed_checkpoint_is_not_taken_for_the_saved_one(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path,
    kind: str, file: str, damage: Callable[[Path], None], error: type[Exception], message: str,
) -> None:  # fmt: skip
    saved = NEWEST[kind]
    saved.restore(fresh_broker.bootstrap, tmp_path)
    saved.send_rest(fresh_broker.bootstrap)
    for path in (tmp_path / saved.history.stream).glob(file):
        damage(path)
    with pytest.raises(error, match=message):
        saved.run_on(spark, fresh_broker.bootstrap, tmp_path)
