"""What the platform that `make up` started uses while idle: CPU over some minutes, memory at the end.

Its own measurement runs all the time, so the streams are not asleep: they take a batch for each sample.

    make up && python -m tests.bench.idle [minutes]
"""

from __future__ import annotations

import sys

from penstock.control import connect
from penstock.devstack import resource_usage
from penstock.devstack.platform import Platform
from tests.bench.common import table, write

MIB = 1024 * 1024


def main(minutes: float) -> None:
    used = resource_usage.measure(Platform().servers, connect().drivers(), seconds=60 * minutes)
    missing = [p.name for p in used if p.state != "running"]
    if missing:
        raise SystemExit(f"not running: {', '.join(missing)}; `make up` first")
    rows = [[p.name, f"{p.cpu or 0:.1f} %", f"{(p.memory or 0) / MIB:.0f} MiB"] for p in used]
    cpu, memory = sum(p.cpu or 0 for p in used), sum(p.memory or 0 for p in used)
    rows.append(["**together**", f"**{cpu:.1f} %**", f"**{memory / MIB:.0f} MiB**"])
    figures = {
        "CPU, % of a core": {p.name: [p.cpu or 0.0] for p in used},
        "memory, MiB": {p.name: [(p.memory or 0) / MIB] for p in used},
    }
    write("idle", table(["part", "of one core", "memory (PSS)"], rows), figures, chart="CPU, % of a core")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
