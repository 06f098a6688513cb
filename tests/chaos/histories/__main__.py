"""Random histories of tables, captured while processes are killed: `python -m tests.chaos.histories` (in `make chaos`).

Each history is one random table, a random capture over it and some sessions that change it; a dozen run at once.
Meanwhile the capturing process and the servers are killed, and then each topic is compared with its table, key by key:
once after the polls, and once after a reconcile. A run is continued with the same `--home`. The history of a number
is the same for the same seed; the order of events is not. Exit code 1 if there was a mistake.
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

from tests.chaos.histories.batch import Batch, RunSummary
from tests.chaos.histories.tables import AT_ONCE, FEATURES
from tests.chaos.histories.world import available_engines, start_world


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--outages", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    parser.add_argument(
        "--hours", type=float, default=4.0, help="the run ends after this time even if histories remain"
    )
    parser.add_argument("--home", type=Path, default=Path(".penstock-chaos") / "histories")
    parser.add_argument("--engines", default="", help="only these, with commas")
    parser.add_argument("--without", default="", help=f"leave out, with commas: {', '.join(FEATURES)}")
    parser.add_argument("--stop", action="store_true", help="end after the first batch with a mistake")
    return parser.parse_args(argv)


def load_summary(home: Path) -> RunSummary:
    """The results saved by earlier starts with this home."""
    file = home / "summary.json"
    summary = RunSummary()
    if file.exists():
        saved = json.loads(file.read_text())
        for field in fields(RunSummary):
            default = getattr(summary, field.name)
            setattr(summary, field.name, type(default)(saved.get(field.name, default)))
    return summary


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def exit_on_signal(number: int, _: object) -> None:
    # An exception, so that the servers are stopped.
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    home = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    summary, end = load_summary(home), time.monotonic() + args.hours * 3600
    engines = args.engines.split(",") if args.engines else available_engines()
    without = frozenset(args.without.split(","))
    with start_world(home, engines) as world:
        while summary.histories < args.histories and time.monotonic() < end:
            done, remaining = summary.histories, args.histories - summary.histories
            numbers = range(args.first + done, args.first + done + min(args.at_once, remaining))
            batches = -(-remaining // args.at_once)
            batch = Batch(world, args.seed, numbers, without, summary, say)
            batch.run(
                -(-max(0, args.kills - summary.kills.total()) // batches),
                -(-max(0, args.outages - summary.outages.total()) // batches),
            )
            (home / "summary.json").write_text(json.dumps(vars(summary), indent=1, ensure_ascii=False))
            say(
                f"{summary.histories} histories, {summary.operations} operations, {summary.kills.total()} kills, "
                f"{summary.outages.total()} outages, {summary.records} records, {len(summary.mistakes)} mistakes"
            )
            if args.stop and summary.mistakes:
                break
    for mistake in summary.mistakes:
        print(mistake[:400])
    return 1 if summary.mistakes else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, exit_on_signal)
    sys.exit(main())
