"""Whether the checkers of `make chaos` find mistakes: the platform is changed on purpose, one change at a time.

`python -m tests.chaos.mutants [NAME...]`. Each change is made in a copy of the project. A short run of the faults
(the long run, the histories of tables, the loop of sinks or a test with kills) must find mistakes in it, and none in an
unchanged copy. Exit code 1 if a change is not found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.settings import PROJECT

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.aot")
SHORT = [
    "--without-airflow",
    "--grace",
    "45",
    "--timeout",
    "60",
    "--seed",
    "7",
    "--streams",
    "named,parted,totals,once",
]
OUTPUT, TRANSACTIONS = "penstock/kafka/topic_writer.py", "penstock/kafka/transactions.py"


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    old: text that occurs exactly once. kills, kinds: of the long run that must find it. Instead of the long run:
    histories: their number, from `first` on, on one engine; stores: those of a run of the sinks; test: a file of tests.
    """

    name: str
    file: str = ""
    old: str = ""
    new: str = ""
    kills: int = 1
    kinds: str = "driver"
    histories: int = 0
    first: int = 0
    engine: str = "mariadb"
    stores: tuple[str, ...] = ()
    test: str = ""

    def put(self, project: Path) -> None:
        if not self.file:
            return
        path = project / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"mutant {self.name}: {self.file} has {text.count(self.old)} times: {self.old}")
        path.write_text(text.replace(self.old, self.new))


AGENTS = "tests/chaos/test_agents_kills.py"
COMMIT = "self._producer.commit_transaction(TIMEOUT)"
SENT = "yield ProducerRecord(topic, as_bytes(key), as_bytes(value), tuple(record_headers or ()))"
MUTANTS = [
    Mutant("no change"),
    Mutant(
        "a mark is not compared",
        OUTPUT,
        "return NO_COMMIT if value is None else CommitMarker.read(value)",
        "return NO_COMMIT",
        kills=4,
        kinds="aimed",
    ),
    Mutant(
        "a commit is left out",
        TRANSACTIONS,
        COMMIT,
        f"{COMMIT} if count % 50 != 7 else self._producer.abort_transaction(TIMEOUT)",
    ),
    Mutant(
        "a dead letter is sent twice",
        OUTPUT,
        SENT,
        f"{SENT}\n            if topic.endswith('-dead-letter') and value == b'no json':\n                {SENT}",
    ),
    Mutant(
        "a late record is not kept",
        OUTPUT,
        SENT,
        f"if topic != 'once-late' or int(dict(record_headers)['penstock.offset']) % 5:\n                {SENT}",
    ),
    Mutant(
        "offsets are published instead of a mark",
        TRANSACTIONS,
        "                ProducerRecord(\n                    self._marker_partition.topic, self.name.encode(), mark, ",
        "                ProducerRecord(\n                    self._marker_partition.topic, b'none', mark, ",
        kills=4,
        kinds="aimed",
    ),
    Mutant(
        "rows are written without a transaction",
        TRANSACTIONS,
        "                self._send(message)\n",
        "                self._send(message)\n"
        "                if count % 5 == 0:\n"
        "                    self._producer.commit_transaction(TIMEOUT)\n"
        "                    self._producer.begin_transaction()\n",
        kills=4,
        kinds="aimed",
    ),
    Mutant(
        "a page of a capture is left out",
        "penstock/capture/session.py",
        "for key, value in rows]",
        "for key, value in rows if value is None or len(value) % 7]",
        kinds="capture",
    ),
    Mutant("no change of captures", histories=12),
    Mutant(
        "the low watermark ignores open transactions",
        "penstock/capture/polling/low_watermark.py",
        "bound = (began if oldest is None else min(oldest, began)) - self.overlap",
        "bound = began - self.overlap",
        histories=12,
    ),
    Mutant(
        "there is no overlap",
        "penstock/capture/polling/low_watermark.py",
        "bound = (began if oldest is None else min(oldest, began)) - self.overlap",
        "bound = began if oldest is None else min(oldest, began)",
        histories=12,
        first=12,
        # MariaDB tells whole seconds of when a transaction began, which is overlap enough for clocks such as these.
        engine="postgres",
    ),
    Mutant(
        "a page begins behind the row after its last",
        "penstock/capture/polling/poller.py",
        "            yield page\n",
        "            yield replace(page, rows=page.rows[1:]) if behind else page\n",
        histories=12,
    ),
    Mutant(
        "a tombstone is left out",
        "penstock/capture/session.py",
        "for key, value in rows]",
        "for key, value in rows if value is not None or len(key) % 3]",
        histories=12,
    ),
    Mutant(
        "what is read again is compared by its key alone",
        "penstock/capture/polling/change_cache.py",
        "return self._last.get(hash(key)) == hash(value)",
        "return hash(key) in self._last",
        histories=12,
    ),
    Mutant("no change of sinks", stores=("elasticsearch", "mongodb", "influxdb")),
    Mutant(
        "a version is not compared",
        "penstock/sinks/mongodb/versions.py",
        '{"_id": row.id, VERSION: {"$lte": Int64(row.version)}}',
        '{"_id": row.id}',
        stores=("mongodb",),
    ),
    Mutant(
        "an item of a partly failed bulk is taken as written",
        "penstock/sinks/elasticsearch/bulk.py",
        "ItemStatus.FAILED if status >= 500 and status not in BUSY else ItemStatus.REFUSED",
        "ItemStatus.WRITTEN",
        stores=("elasticsearch",),
    ),
    Mutant(
        "what a refused row hid is not written",
        "penstock/sinks/core/latest_per_key.py",
        "        yield best\n",
        "        yield best\n        return\n",
        stores=("mongodb",),
    ),
    Mutant(
        "tombstones are not read",
        "penstock/sinks/influxdb/existing_points.py",
        'newest = pc.max_element_wise(own, joined["tombstone"])',
        "newest = own",
        stores=("influxdb",),
    ),
    Mutant("no change of agents", test=AGENTS),
    Mutant(
        "an absence that was told is told again when it ends",
        "jobs/agents/active.py",
        "AND (is_distant OR is_overdue) AND NOT is_neighbour_expired\n          AND NOT is_open_gap)",
        "AND (is_distant OR is_overdue) AND NOT is_open_gap)",
        # Long enough for agents to come back.
        kills=3,
        test=AGENTS,
    ),
    Mutant(
        "a window that is told stays in the state",
        "jobs/agents/alerts.py",
        "FROM counted\nWHERE window_end > getvariable('time')\nGROUP BY account",
        "FROM counted\nGROUP BY account",
        test=AGENTS,
    ),
    Mutant(
        "agents are not told again",
        "jobs/agents/recheck.py",
        'emit_sql="SELECT DISTINCT account FROM records"',
        'emit_sql="SELECT DISTINCT account FROM records WHERE false"',
        test=AGENTS,
    ),
]


def mistakes_found(mutant: Mutant, folder: Path) -> list[str]:
    """The mistakes that a short run finds in a copy of the project with this change."""
    project = folder / "project"
    shutil.copytree(PROJECT, project, ignore=LEFT_OUT)
    mutant.put(project)
    command = [sys.executable, "-m", "tests.chaos.long", *SHORT, "--kinds", mutant.kinds]
    if mutant.histories:
        command = [sys.executable, "-m", "tests.chaos.histories", "--seed", "7", "--engines", mutant.engine]
        command += ["--histories", str(mutant.histories), "--first", str(mutant.first)]
    if mutant.stores:
        command = [sys.executable, "-m", "tests.chaos.sinks", "--seed", "7", "--stores", *mutant.stores]
    if mutant.test:
        return _failures(mutant, project, folder / "log")
    command += ["--home", str(folder / "home"), "--kills", str(mutant.kills), "--outages", "0"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")])}
    with (folder / "log").open("w") as log:
        subprocess.run(command, cwd=project, env=env, stdout=log, stderr=log, check=False)
    summary = folder / "home" / "summary.json"
    if not summary.exists():
        raise SystemExit(f"mutant {mutant.name} did not run: {(folder / 'log').read_text()[-2000:]}")
    mistakes: list[str] = json.loads(summary.read_text())["mistakes"]
    return mistakes


def _failures(mutant: Mutant, project: Path, log: Path) -> list[str]:
    """What the assertions of a file of tests say."""
    env = {**os.environ, "PYTHONPATH": str(project), "KILLS": str(mutant.kills)}
    with log.open("w") as out:
        command = [sys.executable, "-m", "pytest", "-x", "-q", mutant.test]
        code = subprocess.run(command, cwd=project, env=env, stdout=out, stderr=out, check=False).returncode
    lines = log.read_text().splitlines()
    if code not in (0, 1):
        raise SystemExit(f"mutant {mutant.name} did not run: {lines[-20:]}")
    return [line.removeprefix("E").strip() for line in lines if line.startswith("E ")] if code else []


def main(names: Sequence[str]) -> int:
    failed = 0
    for mutant in [m for m in MUTANTS if not names or m.name in names]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="penstock-mutant-") as folder:
            mistakes = mistakes_found(mutant, Path(folder))
        good = bool(mistakes) == bool(mutant.file)
        failed += not good
        first_mistake = mistakes[0][:200] if mistakes else "nothing found"
        took = f"{time.monotonic() - began:.0f} s, {mutant.kills} kills"
        print(f"{'good' if good else 'BAD '} {mutant.name}: {first_mistake} ({took})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
