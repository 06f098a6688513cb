"""Streams are replaced while the process that runs both versions is killed: no row is lost or written twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import RESET_FILE
from penstock.settings import PROJECT
from penstock.testing import send
from tests.chaos.replacement_worker import name_of, versions_of
from tests.support.replaced_streams import ID, RandomRecords, check_output, create_topics
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("KILLS", "3"))
# `make chaos` says how many streams are replaced; each process has some of them.
REPLACEMENTS = int(os.environ.get("REPLACEMENTS", "2"))
AT_ONCE = 10
# Seconds that a process needs for a stream, about: it is killed somewhere in them.
SECONDS_PER_STREAM = 6


class Worker:
    """The process that is killed."""

    def __init__(self, bootstrap: str, root: Path, seeds: range) -> None:
        self.log = root / "worker.log"
        (root / "ready").unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.chaos.replacement_worker", bootstrap, str(root), *map(str, seeds)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self.runs() and (root / "ready").exists(), what=f"the worker runs: {self.log}")

    def runs(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()[-5_000:]
        return True

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def worker(bootstrap: str, root: Path, seeds: range) -> Iterator[Worker]:
    started = Worker(bootstrap, root, seeds)
    try:
        yield started
    finally:
        started.kill()


@pytest.mark.parametrize("first", range(0, REPLACEMENTS, AT_ONCE))
def test_no_row_is_lost_doubled_or_written_again(first: int, broker: Broker, tmp_path: Path) -> None:
    seeds, bootstrap, rng = range(first, min(first + AT_ONCE, REPLACEMENTS)), broker.bootstrap, random.Random(first)
    records = {}
    for seed in seeds:
        create_topics(name_of(seed), bootstrap)
        both = versions_of(seed)[0].kind in ("inner", "outer")
        records[seed] = RandomRecords(name_of(seed), random.Random(seed), both=both)
        send(bootstrap, records[seed].next())
    (tmp_path / "wanted").write_text("")
    for _ in range(KILLS):
        with worker(bootstrap, tmp_path, seeds):
            for seed in seeds:
                send(bootstrap, records[seed].next())
            time.sleep(rng.uniform(0, SECONDS_PER_STREAM * len(seeds)))
    with worker(bootstrap, tmp_path, seeds) as last:

        def process(number: int) -> None:
            (tmp_path / "wanted").write_text(str(number))

            def has_passed() -> bool:
                passed = tmp_path / "passed"
                return last.runs() and passed.exists() and passed.read_text() == str(number)

            wait_until(has_passed, 600, what=f"all streams are processed: {last.log}")

        for number in range(20):
            if all(is_cut(tmp_path, seed) for seed in seeds):
                break
            for seed in seeds:
                send(bootstrap, records[seed].next())
            process(number)
        # The first moves the watermark, by which the second closes the windows.
        for number in (100, 101):
            for seed in seeds:
                send(bootstrap, records[seed].last())
            process(number)
    for seed in seeds:
        check_output(name_of(seed), *versions_of(seed), records[seed].events, bootstrap, tmp_path)


def is_cut(root: Path, seed: int) -> bool:
    path = root / name_of(seed) / RESET_FILE
    return path.exists() and json.loads(path.read_text())["id"] == ID
