"""What more than one machine would need, extrapolated from the measurements in docs/benchmarks.md.

    python -m tests.bench.scale

Rewrites the tables of docs/scale.md. What is assumed, for it could not be measured here, is among the constants.
"""

from __future__ import annotations

import json
import re
from math import ceil

import pyarrow as pa

from penstock.model.topic import COMMITS
from penstock.settings import PROJECT, Settings
from penstock.supervision.lifecycle import HISTORY_EVERY
from tests.bench.common import RESULTS, table

PAGE = PROJECT / "docs" / "scale.md"
# Assumed.
RECORD, REPLICAS, READERS = 100, 3, 2
BROKER_MB_S, BROKER_PARTITIONS = 200, 4_000
PARTITIONS = 4
CORES = 8
STATE_PARTITION_GB, WORKER_GB, OBJECT_STORE_MB_S = 1, 200, 200
FILES_A_PARTITION = 6


def figure(section: str, row: str, column: str) -> float:
    """A number of a table between a section's marks; the row by how it begins, the column by its head."""
    text = RESULTS.read_text().split(f"<!-- {section} -->", 1)[1].split(f"<!-- /{section} -->", 1)[0]
    lines = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    at = next(i for line in lines for i, cell in enumerate(line) if cell == column)
    cells = next(line for line in lines if line[0].replace("*", "").startswith(row))
    return float(re.sub(r"[^\d.]", "", cells[at]))


def records(rate: int = 1_000_000) -> list[list[object]]:
    per_million = {
        "quality, one shape": figure("throughput-steady-canonical", "quality: Penstock", "CPU s per million"),
        "quality, any shape": figure("throughput-steady-any", "quality: Penstock", "CPU s per million"),
        "summaries, both stages, any shape": figure(
            "throughput-steady-any", "summaries, two stages: Penstock", "CPU s per million"
        ),
    }
    report_rows: list[list[object]] = []
    for name, seconds in per_million.items():
        cores = seconds * rate / 1e6
        report_rows.append([f"cores busy, {name}", f"{cores:.1f}; {ceil(cores / 0.6)} to have at 60 %"])
        if name == "summaries, both stages, any shape":
            peak = figure("throughput-steady-any", "summaries, two stages: Penstock", "peak, MiB")
            report_rows.append(["memory, by what two cores had", f"{ceil(cores / 0.6) / 2 * peak / 1024:.0f} GiB"])
    mb = rate * RECORD / 1e6
    report_rows.append(
        ["bytes from producers, of 100 bytes a record", f"{mb:.0f} MB/s; {mb * REPLICAS:.0f} with 3 replicas"]
    )
    traffic = mb * (REPLICAS + READERS)
    report_rows.append(
        [f"brokers at {BROKER_MB_S} MB/s each, in and out (assumed)", max(REPLICAS, ceil(traffic / BROKER_MB_S))]
    )
    written = figure("capture-snapshot", "capture", "rows/s")
    report_rows.append(["rows a second out of one driver's producer, as a snapshot writes them", f"{written:,.0f}"])
    return report_rows


def topics(count: int = 100_000) -> list[list[object]]:
    plan = {f"topic-{n:06}": {str(p): 1_000_000_000 + n * 977 + p for p in range(PARTITIONS)} for n in range(count)}
    text = json.dumps(plan, separators=(",", ":")).encode()
    packed = pa.Codec("lz4").compress(text).size
    limit = int(COMMITS.config.get("max.message.bytes", 1_048_588))
    brokers = ceil(count * PARTITIONS * REPLICAS / BROKER_PARTITIONS)
    return [
        [f"partitions, {PARTITIONS} a topic", f"{count * PARTITIONS:,}"],
        [f"brokers at {BROKER_PARTITIONS:,} replicas each (assumed)", brokers],
        ["the plan of a batch that reads all, in the checkpoint", f"{len(text) / 1e6:.1f} MB"],
        ["both plans that a mark holds", f"{2 * len(text) / 1e6:.1f} MB, packed {2 * packed / 1e6:.1f} MB"],
        ["what the topic of marks takes", f"{limit / 1e6:.1f} MB"],
        ["so topics one stream can read", f"{int(count * limit / (2 * packed)):,}"],
    ]


def captures(count: int = 10_000) -> list[list[object]]:
    driver = figure("capture-idle", "captures' driver", "of one core") / 20 / 100
    database = figure("capture-idle", "MariaDB", "of one core") / 20 / 100
    reports = count / Settings.model_fields["progress_every"].default
    return [
        ["cores of drivers at a poll a second each, nothing changed", f"{driver * count:.0f}"],
        ["cores of the captured databases", f"{database * count:.0f}"],
        ["captures that one driver, which is one Python process, can poll each second", f"{1 / driver:.0f}"],
        ["rows of progress a second", f"{reports:,.0f}"],
    ]


def state(size: float = 1e12) -> list[list[object]]:
    mib, keys = (figure("rebuild", "5,000,000", column) for column in ("state, MiB", "keys"))
    seconds = figure("rebuild", "5,000,000", "rebuilt, s")
    a_key = mib * 2**20 / keys
    parts = ceil(size / (STATE_PARTITION_GB * 1e9))
    workers = ceil(size / (WORKER_GB * 1e9))
    return [
        ["keys, of as many bytes each as walk-in counts have", f"{size / a_key / 1e9:.0f} thousand million"],
        [f"workers with {WORKER_GB} GB of local disk (assumed)", workers],
        [f"partitions of {STATE_PARTITION_GB} GB (assumed)", f"{parts:,}"],
        [f"files of a batch that changes all of them, {FILES_A_PARTITION} each", f"{parts * FILES_A_PARTITION:,}"],
        ["checkpoint traffic of 1,000,000 changed keys a second", f"{a_key:.0f} MB/s"],
        [
            f"one lost worker's state, read back at {OBJECT_STORE_MB_S} MB/s by each of the others (assumed)",
            f"{WORKER_GB * 1e9 / (max(1, workers - 1) * OBJECT_STORE_MB_S * 1e6):.0f} s",
        ],
        ["all of it rebuilt from topics on two cores", f"{size / (mib * 2**20) * seconds / 3600:.0f} h"],
    ]


def rows(count: int = 10_000) -> list[list[object]]:
    each, history_every = Settings.model_fields["progress_every"].default, HISTORY_EVERY
    look = figure("rows", "a look of one app's watch", "median")
    report = figure("rows", "a driver's report of 10 streams", "median")
    return [
        ["rows of progress a second", f"{count / each:,.0f}"],
        ["rows of history a second", f"{count / history_every:,.0f}"],
        ["the same kept, of a day", f"{count / history_every * 86_400 / 1e6:.0f} million"],
        ["reports a second, by ten streams each", f"{count / 10 / each:,.0f}"],
        ["connections busy with them", f"{count / 10 / each * report / 1000:.1f}"],
        ["looks a second of 1,000 apps", f"{count / 10 / Settings.model_fields['supervise_every'].default:,.0f}"],
        ["apps that one thread can look at each second", f"{1000 / look:.0f}"],
        ["what all viewers of the page share", f"{figure('page', 'what all viewers share', 'median'):.0f} ms"],
    ]


def main() -> None:
    page = PAGE.read_text()
    for section in (records, topics, captures, state, rows):
        head, rest = page.split(f"<!-- {section.__name__} -->", 1)
        _, tail = rest.split(f"<!-- /{section.__name__} -->", 1)
        text = table(["what", "it comes to"], section())
        page = f"{head}<!-- {section.__name__} -->\n{text}\n<!-- /{section.__name__} -->{tail}"
    PAGE.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
