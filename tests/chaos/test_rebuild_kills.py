"""A rebuild for a stream's next release, which cannot read the old state, is killed at random moments.

At the end the stream continues and has counted every record once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.control import Actor, Control
from penstock.devstack.servers.kafka import Broker
from penstock.errors import Blocked
from penstock.model.topic import COMMITS
from penstock.settings import PROJECT
from penstock.streams import Stream
from penstock.testing import Record, create, latest, read, running, send
from tests.chaos.projects import other_project
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("SEED", "1"))
PROJECT_FOLDER = PROJECT / "tests" / "chaos" / "backfill_project"
START = 1_700_000_000_000


def payments(rng: random.Random, count: int, totals_by_person: Counter[str]) -> list[Record]:
    """Random payments; adds them to the expected totals."""
    records = []
    for n in range(count):
        who, amount = f"k{rng.randrange(3000)}", rng.randrange(1, 100)
        totals_by_person[who] += amount
        records.append(Record("paid", who, json.dumps({"who": who, "amount": amount, "at": START + n}), n % 2))
    return records


def totals(bootstrap: str) -> dict[str, int]:
    rows = (json.loads(value or "") for value in latest(read(bootstrap, "sums")).values())
    return {row["who"]: row["total"] for row in rows}


def reached_or_ended(is_reached: Callable[[], object], process: subprocess.Popen[bytes]) -> bool:
    return bool(is_reached()) or process.poll() is not None


def declared_stream() -> Stream:
    stream = catalog.load(PROJECT_FOLDER).streams["sums"]
    assert isinstance(stream, Stream)
    return stream


def test_records_are_counted_once_despite_kills(
    spark: SparkSession, fresh_broker: Broker, control: Control, home: Path, tmp_path: Path
) -> None:
    rng, bootstrap = random.Random(SEED), fresh_broker.bootstrap
    checkpoints, log = tmp_path / "checkpoints", tmp_path / "rebuild.log"
    variables = {
        "PENSTOCK_HOME": str(home), "PENSTOCK_KAFKA_BOOTSTRAP": bootstrap, "PENSTOCK_CHECKPOINTS": str(checkpoints),
        "PENSTOCK_CONTROL_URL": control.engine.url.render_as_string(hide_password=False),
        "PENSTOCK_DRIVER_MEMORY": "512m", "PYTHONPATH": str(PROJECT),
    }  # fmt: skip
    expected = Counter[str]()
    with other_project(PROJECT_FOLDER, variables):
        stream = declared_stream()
        create(bootstrap, *stream.topics(), COMMITS)
        with running(stream, spark, bootstrap, checkpoints) as run:
            for _ in range(2):
                send(bootstrap, payments(rng, 3000, expected))
                run.process_all_available()
        assert totals(bootstrap) == expected
    variables["WIDER_STATE"] = "1"
    command = [sys.executable, "-m", "penstock", "streams", "rebuild", "sums"]
    with other_project(PROJECT_FOLDER, variables):
        next_release = declared_stream()
        control.sync(catalog.load(PROJECT_FOLDER))
        control.set_desired(["sums"], "off", Actor("test", "cli"))
        # Records that arrive meanwhile are neither lost nor counted twice.
        send(bootstrap, payments(rng, 500, expected))
        with pytest.raises(Blocked, match="streams rebuild sums"), running(next_release, spark, bootstrap, checkpoints):
            pass
        reset_folder, rebuild_folder = checkpoints / "sums.reset", checkpoints / "sums.rebuilding"
        kill_points: list[Callable[[], object]] = [
            rebuild_folder.exists,
            lambda: list(rebuild_folder.glob("folds/sums/*")),
            lambda: list(rebuild_folder.glob("folds/sums/*.json")),
            lambda: list(rebuild_folder.glob("offsets/*")),
            lambda: list(rebuild_folder.glob("commits/*")) or reset_folder.exists(),
        ]
        environment = {**os.environ, "PENSTOCK_PROJECT": str(PROJECT_FOLDER)}
        for number in range(KILLS):
            is_reached = kill_points[(number + SEED) % len(kill_points)]
            with (
                log.open("ab") as out,
                subprocess.Popen(
                    command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                ) as process,
            ):
                wait_until(partial(reached_or_ended, is_reached, process), every=0.01, what=str(log))
                time.sleep(rng.uniform(0, 0.2))
                assert process.poll() in (None, 0), log.read_text()
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            if not reset_folder.exists():
                # Files of an unfinished rebuild are not used as the state.
                with pytest.raises(Blocked), running(next_release, spark, bootstrap, checkpoints):
                    pass
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not rebuild_folder.exists()
        with running(next_release, spark, bootstrap, checkpoints) as run:
            run.process_all_available()
            assert totals(bootstrap) == expected
            send(bootstrap, payments(rng, 3000, expected))
            run.process_all_available()
        assert totals(bootstrap) == expected
