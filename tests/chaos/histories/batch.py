"""A batch of histories: tables, writers, faults, and the comparison when all writers have ended."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient

from penstock.capture import explain
from penstock.errors import PenstockError
from penstock.model.capture import read
from tests.chaos.histories.checker import Rows, Topic, compared, expected, topics
from tests.chaos.histories.servers import ERRORS, Server, settle
from tests.chaos.histories.tables import History, history
from tests.chaos.histories.world import KILLS, World, outages
from tests.chaos.histories.writers import Writer

ATTEMPTS = 8
WRITERS = 3
# Polls of each capture, and seconds of writing, after the last fault: a process that is killed often hardly polls.
POLLS, LAST = 15, 6.0


@dataclass
class RunSummary:
    """Counts of a run. refused: captures that were refused, by the first words of the reason; by_polls: histories whose
    topics were checked before any reconcile."""

    histories: int = 0
    operations: int = 0
    records: int = 0
    rows: int = 0
    by_polls: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    outages: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    cursors: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)


class Batch:
    """Histories with these numbers. say: called with a line for each event."""

    def __init__(
        self, world: World, seed: int, numbers: Sequence[int], without: frozenset[str], summary: RunSummary,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.world, self.summary, self._say = world, summary, say
        self.rng = random.Random(f"{seed}/{numbers[0]}")
        self.folder = world.home / "declared"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        world.folder = self.folder
        engines = list(world.servers)
        self.histories = [self._create_history(seed, n, engines[n % len(engines)], without) for n in numbers]

    def _server(self, h: History) -> Server:
        return self.world.servers[h.engine]

    def _create_history(self, seed: int, number: int, engine: str, without: frozenset[str]) -> History:
        """Create the table of a history whose capture the platform accepts."""
        for attempt in range(ATTEMPTS):
            h = history(seed, number, engine, without, attempt)
            self._drop(h)
            self._server(h).run(*h.ddl())
            path = self.folder / f"{h.name}.sql"
            path.write_text(h.declaration())
            writer = Writer(h, self._server(h), 99, threading.Lock())
            connection = self._server(h).open()
            for _ in range(self.rng.choice((1, 20))):
                with suppress(*ERRORS):
                    writer.insert(connection)
            connection.close()
            if not (why := refusal(path)):
                return h
            self.summary.refused[" ".join(why.split()[:12])] += 1
            self._keep(h, "refused", [why])
            path.unlink()
            self._drop(h)
        raise SystemExit(f"history {number}: {ATTEMPTS} captures were refused, the last one: {why}")

    def run(self, kills: int, cuts: int) -> None:
        for h in self.histories:
            self.summary.engines[h.engine] += 1
            self.summary.keys.update(f"{h.engine} {c.kind.ddl}" for c in h.key)
            self.summary.cursors[f"{h.engine} {h.cursor.ddl}{' auto' if h.cursor.auto else ''}"] += 1
        writers = self._writers()
        self.world.start_worker()
        try:
            self._break(kills, cuts)
        finally:
            for writer in writers:
                writer.over.set()
            self._end(writers)
        self.summary.operations += sum(w.done for w in writers)
        self._check({w.history.name for w in writers if w.late})
        self.world.end_worker()
        for h in self.histories:
            self._drop(h)
        self._forget_topics()

    def _end(self, writers: Sequence[Writer]) -> None:
        """Wait for all writers; one may wait for a prepared transaction of another that lost its connection."""
        deadline = time.monotonic() + 120
        while any(writer.is_alive() for writer in writers):
            for server in self.world.servers.values():
                # Its session may be just about to end it.
                with suppress(*ERRORS):
                    settle(server)
            time.sleep(0.5)
            if time.monotonic() > deadline:
                raise AssertionError(f"these do not end: {[w.name for w in writers if w.is_alive()]}")
        for server in self.world.servers.values():
            settle(server)

    def _writers(self) -> list[Writer]:
        writers = []
        for h in self.histories:
            lock = threading.Lock()
            writers += [Writer(h, self._server(h), n, lock, partial(self._polls, h.name)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        return writers

    def _polls(self, name: str) -> int:
        row = self.world.captures.rows().get(name)
        return row.polls if row else 0

    def _break(self, kills: int, cuts: int) -> None:
        faults = outages(self.world)
        plan = ["kill"] * kills + ["outage"] * cuts
        self.rng.shuffle(plan)
        names = [h.name for h in self.histories]
        for what in plan:
            # Without a wait, the process would mostly be killed while it starts.
            if self.rng.random() < 0.7:
                self.world.wait_polled(names)
            time.sleep(self.rng.choice((self.rng.uniform(0, 2), self.rng.uniform(2, 7))))
            count = self.summary.kills if what == "kill" else self.summary.outages
            kinds = list(KILLS) if what == "kill" else list(faults)
            least = min(count[kind] for kind in kinds)
            # The least frequent kind, so that all occur.
            kind = self.rng.choice([kind for kind in kinds if count[kind] == least])
            description = KILLS[kind](self.world, self.rng) if what == "kill" else faults[kind](self.rng)
            count[kind] += 1
            self._say(f"{kind}: {description}")
            if self.rng.random() < 0.3:
                self._request_reconcile_or_snapshot()
        if not self.world.wait_polled(names, POLLS):
            self._say("not all of them have polled often")
        time.sleep(LAST)

    def _request_reconcile_or_snapshot(self) -> None:
        """Request a reconcile or a new snapshot while writers and faults continue."""
        from penstock.control.rows import Actor

        h = self.rng.choice(self.histories)
        if "snapshot" in h.features:
            self.world.captures.ask(h.name, self.rng.choice(("snapshot", "reconcile")), Actor("histories", "test"))

    # The comparison

    def _check(self, unseen_by_polls: set[str]) -> None:
        names = [h.name for h in self.histories]
        failed = self.world.ask_all(names, "poll")
        failed |= self.world.ask_all([n for n in names if n not in failed], "poll")
        rows = self.world.captures.rows()
        not_reconciled = {name for name in names if not (row := rows.get(name)) or not row.drift}
        self.summary.by_polls += len(not_reconciled - failed.keys())
        wrong = self._compared(exact=False)
        to_poll_again = [h.name for h in self.histories if wrong[h.name] and h.name not in failed]
        if to_poll_again:
            # A difference that another poll repairs is no loss.
            time.sleep(3)
            self.world.ask_all(to_poll_again, "poll")
            wrong = self._compared(exact=False)
        for h in self.histories:
            if h.name in failed:
                self._mistake(h, "stopped", [failed[h.name]])
            elif wrong[h.name] and h.name not in unseen_by_polls:
                self._mistake(h, "before the reconcile", wrong[h.name])
        unreconciled = self.world.ask_all([n for n in names if n not in failed], "reconcile")
        wrong = self._compared(exact=True, count=True)
        for h in self.histories:
            if h.name in unreconciled:
                self._mistake(h, "reconcile", [unreconciled[h.name]])
            elif wrong[h.name] and h.name not in failed:
                self._mistake(h, "after the reconcile", wrong[h.name])
        self.summary.histories += len(self.histories)

    def _compared(self, *, exact: bool, count: bool = False) -> dict[str, list[str]]:
        tables: dict[str, tuple[Rows, set[tuple[object, ...]]]] = {}
        for h in self.histories:
            tables[h.name] = expected(h, self._server(h))
        contents = topics(self.world.broker.bootstrap, self.histories)
        if count:
            self.summary.records += sum(topic.records for topic in contents.values())
            self.summary.rows += sum(len(rows) for rows, _ in tables.values())
        return {
            h.name: compared(h, contents.get(h.name, Topic()), *tables[h.name], exact=exact) for h in self.histories
        }

    def _mistake(self, h: History, when: str, mistakes: list[str]) -> None:
        description = f"{h.name} ({h.engine}) {when}: {' | '.join(mistakes)}"
        self.summary.mistakes.append(description[:2000])
        self._say(f"MISTAKE {description[:700]}")
        self._keep(h, when, mistakes)

    def _keep(self, h: History, when: str, mistakes: list[str]) -> None:
        folder = self.world.home / "mistakes"
        folder.mkdir(exist_ok=True)
        with (folder / f"{h.name}.txt").open("a") as out:
            out.write(f"{when}, features {sorted(h.features)}, cursor drawn by {h.cursor.drawn}\n")
            out.write(";\n".join(h.ddl()) + f"\n\n{h.declaration()}\n" + "\n".join(mistakes) + "\n\n")

    def _drop(self, h: History) -> None:
        self._server(h).run(*(f"DROP TABLE IF EXISTS {h.quote(name)}" for name in (h.name, h.name + "_d")))

    def _forget_topics(self) -> None:
        client = AdminClient({"bootstrap.servers": self.world.broker.bootstrap})
        for deletion in client.delete_topics([h.name for h in self.histories]).values():
            with suppress(Exception):  # it may never have been made
                deletion.result(30)


def refusal(path: Path) -> str:
    """Why the platform refuses a declared capture; empty if it accepts it."""
    try:
        explain.first_row(read(path))
    except PenstockError as e:
        return str(e)
    return ""
