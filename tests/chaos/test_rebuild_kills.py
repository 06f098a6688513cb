"""A rebuild whose process is killed wherever it is, of a stream's next version, which cannot read the state that was.

At the end the stream goes on with every record counted once.
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

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("SEED", "1"))
FILLING = PROJECT / "tests" / "chaos" / "filling"
START = 1_700_000_000_000


def paid(chance: random.Random, count: int, into: Counter[str]) -> list[Record]:
    """Payments, which are counted too."""
    found = []
    for n in range(count):
        who, amount = f"k{chance.randrange(3000)}", chance.randrange(1, 100)
        into[who] += amount
        found.append(Record("paid", who, json.dumps({"who": who, "amount": amount, "at": START + n}), n % 2))
    return found


def totals(bootstrap: str) -> dict[str, int]:
    rows = (json.loads(value or "") for value in latest(read(bootstrap, "sums")).values())
    return {row["who"]: row["total"] for row in rows}


def reached_or_ended(reached: Callable[[], object], process: subprocess.Popen[bytes]) -> bool:
    return bool(reached()) or process.poll() is not None


def declared() -> Stream:
    found = catalog.load(FILLING).streams["sums"]
    assert isinstance(found, Stream)
    return found


def test_killed_again_and_again(
    spark: SparkSession, fresh_broker: Broker, control: Control, home: Path, tmp_path: Path
) -> None:
    chance, bootstrap = random.Random(SEED), fresh_broker.bootstrap
    checkpoints, log = tmp_path / "checkpoints", tmp_path / "said.log"
    given = {
        "PENSTOCK_HOME": str(home), "PENSTOCK_KAFKA_BOOTSTRAP": bootstrap, "PENSTOCK_CHECKPOINTS": str(checkpoints),
        "PENSTOCK_CONTROL_URL": control.engine.url.render_as_string(hide_password=False),
        "PENSTOCK_DRIVER_MEMORY": "512m", "PYTHONPATH": str(PROJECT),
    }  # fmt: skip
    wanted = Counter[str]()
    with other_project(FILLING, given):
        stream = declared()
        create(bootstrap, *stream.topics(), COMMITS)
        with running(stream, spark, bootstrap, checkpoints) as run:
            for _ in range(2):
                send(bootstrap, paid(chance, 3000, wanted))
                run.process_all_available()
        assert totals(bootstrap) == wanted
    given["FILLING_WIDER"] = "1"
    words = [sys.executable, "-m", "penstock", "streams", "rebuild", "sums"]
    with other_project(FILLING, given):
        wider = declared()
        control.sync(catalog.load(FILLING))
        control.set_desired(["sums"], "off", Actor("test", "cli"))
        # What comes meanwhile is neither lost nor counted twice.
        send(bootstrap, paid(chance, 500, wanted))
        with pytest.raises(Blocked, match="streams rebuild sums"), running(wider, spark, bootstrap, checkpoints):
            pass
        waits, making = checkpoints / "sums.reset", checkpoints / "sums.rebuilding"
        moments: list[Callable[[], object]] = [
            making.exists,
            lambda: list(making.glob("folds/sums/*")),
            lambda: list(making.glob("folds/sums/*.json")),
            lambda: list(making.glob("offsets/*")),
            lambda: list(making.glob("commits/*")) or waits.exists(),
        ]
        for number in range(KILLS):
            reached = moments[(number + SEED) % len(moments)]
            with log.open("ab") as out, subprocess.Popen(
                words, env={**os.environ, "PENSTOCK_PROJECT": str(FILLING)}, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:  # fmt: skip
                wait_until(partial(reached_or_ended, reached, process), every=0.01, what=str(log))
                time.sleep(chance.uniform(0, 0.2))
                assert process.poll() in (None, 0), log.read_text()
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            if not waits.exists():
                # Nothing of what it left is taken for the state.
                with pytest.raises(Blocked), running(wider, spark, bootstrap, checkpoints):
                    pass
        done = subprocess.run(
            words, env={**os.environ, "PENSTOCK_PROJECT": str(FILLING)}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not making.exists()
        with running(wider, spark, bootstrap, checkpoints) as run:
            run.process_all_available()
            assert totals(bootstrap) == wanted
            send(bootstrap, paid(chance, 3000, wanted))
            run.process_all_available()
        assert totals(bootstrap) == wanted
