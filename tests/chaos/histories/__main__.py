"""Random histories of tables, captured while everything dies: `python -m tests.chaos.histories`, part of `make chaos`.

Each history is one random table, a random capture over it and some sessions that change it; a dozen go on at once.
Meanwhile the process that captures is killed and the servers are, and then each topic is compared with its table, key
by key: first what the polls made of it, then what a comparison did. A run goes on where it was with the same `--home`;
the history of a number is the same for the same seed, what happens in which order is not. Exit code 1 if anything was
wrong.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tests.chaos.histories.batch import Batch, Found
from tests.chaos.histories.tables import AT_ONCE, FEATURES
from tests.chaos.histories.world import started, there


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--outages", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    parser.add_argument("--hours", type=float, default=4.0, help="it ends at this time even if not all is done")
    parser.add_argument("--home", type=Path, default=Path(".penstock-chaos") / "histories")
    parser.add_argument("--engines", default="", help="only these, with commas")
    parser.add_argument("--without", default="", help=f"leave out, with commas: {', '.join(FEATURES)}")
    parser.add_argument("--stop", action="store_true", help="end behind the first batch with a mistake")
    return parser.parse_args(given)


def known(home: Path) -> Found:
    """What earlier sittings came to."""
    file = home / "summary.json"
    found = Found()
    if file.exists():
        kept = json.loads(file.read_text())
        for field in fields(Found):
            now = getattr(found, field.name)
            setattr(found, field.name, type(now)(kept.get(field.name, now)))
    return found


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def ended(number: int, _: object) -> None:
    # So that the servers are stopped.
    raise SystemExit(128 + number)


def main(given: Sequence[str] | None = None) -> int:
    args = arguments(given)
    home = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    found, end = known(home), time.monotonic() + args.hours * 3600
    engines = args.engines.split(",") if args.engines else there()
    without = frozenset(args.without.split(","))
    with started(home, engines) as world:
        while found.histories < args.histories and time.monotonic() < end:
            done, left = found.histories, args.histories - found.histories
            numbers = range(args.first + done, args.first + done + min(args.at_once, left))
            batches = -(-left // args.at_once)
            batch = Batch(world, args.seed, numbers, without, found, say)
            batch.run(
                -(-max(0, args.kills - found.kills.total()) // batches),
                -(-max(0, args.outages - found.outages.total()) // batches),
            )
            (home / "summary.json").write_text(json.dumps(vars(found), indent=1, ensure_ascii=False))
            say(
                f"{found.histories} histories, {found.operations} operations, {found.kills.total()} kills, "
                f"{found.outages.total()} outages, {found.records} records, {len(found.mistakes)} mistakes"
            )
            if args.stop and found.mistakes:
                break
    for mistake in found.mistakes:
        print(mistake[:400])
    return 1 if found.mistakes else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, ended)
    sys.exit(main())
