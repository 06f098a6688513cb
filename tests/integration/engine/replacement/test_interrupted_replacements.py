"""Processes that build a new version end anywhere; the next one goes on, and the output is what an oracle says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint import cut_rows
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.checkpoint.plan_fingerprint import PlanFingerprint
from penstock.engine.replacement import cut, new_version
from penstock.engine.replacement.comparison import OutputComparison
from penstock.engine.replacement.new_version import NewVersion
from penstock.engine.replacement.step_rows import StepRows
from penstock.errors import PenstockError
from tests.support.replaced_streams import RandomRecords, ReplacedStream, check_output, create_topics
from tests.support.replacement_oracle import Version

pytestmark = pytest.mark.integration

# Where processes are killed: before or after the work of a function is done, in the order in which it is called.
WHILE_BUILDING: dict[str, tuple[object, str, bool]] = {
    "a step is planned": (Checkpoint, "plan_batch", True),
    "the rows of a step are computed": (StepRows, "write", False),
    "the rows of a step are written": (StepRows, "write", True),
    "a step is committed": (NewVersion, "_run", True),
    "the comparison begins": (OutputComparison, "begin", True),
    "the running version's rows are read": (OutputComparison, "_write_state", False),
}
AT_THE_CUT: dict[str, tuple[object, str, bool]] = {
    "the rows of the cut are written": (cut_rows, "write", True),
    "the fingerprint is written": (PlanFingerprint, "store", True),
    "the reset is written": (Checkpoint, "begin_with", True),
    "the cut is planned": (NewVersion, "take_over", True),
    "the checkpoint is moved": (cut, "move_durably", True),
}
VERSIONS = [
    (Version("changes", grace=10_000), Version("changes", columns=("k", "n", "c"), grace=0)),
    pytest.param(
        (Version("outer", length=10_000, grace=20_000), Version("outer", length=10_000, grace=1_000)),
        marks=pytest.mark.long,
    ),
]


class Killed(Exception):
    """Where a process is killed."""


@pytest.mark.parametrize("versions", VERSIONS, ids=["changes", "outer"])
def test_the_next_process_goes_on(
    versions: tuple[Version, Version], spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    name = f"interrupted-{versions[0].kind}"
    create_topics(name, broker.bootstrap)
    records = RandomRecords(name, random.Random(1), both=versions[0].kind == "outer")
    case = ReplacedStream(name, *versions, spark, broker.bootstrap, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_version, "STEP_RECORDS", 10)
        with case.running(new=False) as process:
            process(records.next())
            for owner, function, after in WHILE_BUILDING.values():
                process(records.next())
                with killed_at(owner, function, after=after), closing(case.open()) as made:
                    for _ in range(10):
                        made.advance()
        for moment, (owner, function, after) in AT_THE_CUT.items():
            with killed_at(owner, function, after=after), closing(case.open()) as made:
                made.cut()
            if moment == "the cut is planned":
                # It is the running version that goes on, and the new one follows.
                with case.running(new=False) as process:
                    process(records.next())
    assert case.is_cut
    with case.running(new=True) as process:
        process(records.next())
        process(records.last())
        process(records.last())
    check_output(name, *versions, records.events, broker.bootstrap, tmp_path)


@contextmanager
def killed_at(owner: object, name: str, *, after: bool) -> Iterator[None]:
    """Let a function raise Killed before its next call, or when that has done its work."""
    function = getattr(owner, name)

    def killing(*arguments: Any, **named: Any) -> None:
        if after:
            function(*arguments, **named)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, killing)
        try:
            yield
        except (Killed, PenstockError) as e:
            # A step that fails says why as a text.
            if "Killed" not in repr(e) + str(e):
                raise
        else:
            raise AssertionError(f"nothing has called {name}")
