"""Runs streams and their replacements, all in one process, wherever they are; it is killed and started again.

`python -m tests.chaos.replacement_worker BOOTSTRAP ROOT SEED...`: a stream of each seed. It passes over all of them,
and then writes to ROOT/passed what ROOT/wanted said before.
"""

from __future__ import annotations

import random
import sys
from contextlib import closing
from pathlib import Path

from penstock.engine.replacement import new_version
from penstock.testing import spark_session
from tests.support.replaced_streams import KINDS, ReplacedStream, random_versions
from tests.support.replacement_oracle import Version


def name_of(seed: int) -> str:
    return f"killed-{seed}"


def versions_of(seed: int) -> tuple[Version, Version]:
    return random_versions(KINDS[seed % len(KINDS)], random.Random(seed))


def go_on(case: ReplacedStream) -> None:
    """Run the version that is due, and let the other one follow and take its place."""
    with case.running(new=case.is_cut) as process:
        process(())
    if case.is_cut:
        return
    with closing(case.open()) as replacement:
        for _ in range(4):
            if replacement.advance() and replacement.is_ready:
                replacement.cut()
                return


def main(bootstrap: str, root: Path, seeds: list[int]) -> None:
    new_version.STEP_RECORDS = 10
    with spark_session() as spark:
        cases = [ReplacedStream(name_of(seed), *versions_of(seed), spark, bootstrap, root) for seed in seeds]
        (root / "ready").touch()
        while True:
            wanted = (root / "wanted").read_text()
            random.shuffle(cases)
            for case in cases:
                go_on(case)
            (root / "passed").write_text(wanted)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(seed) for seed in sys.argv[3:]])
