"""Some histories at once: tables, writers, breakers, quiet, comparison."""

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
# Polls of each capture, and seconds of writing, behind the last breaker: what is killed often hardly polls.
POLLS, LAST = 15, 6.0


@dataclass
class Found:
    """What a run came to; counts. refused: captures that were refused, by the reason's first words; by_polls: histories
    in which nothing was compared before it was looked at what the polls wrote."""

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
    """Histories of these numbers. say: told of what happens, in lines."""

    def __init__(
        self, world: World, seed: int, numbers: Sequence[int], without: frozenset[str], found: Found,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.world, self.found, self._say = world, found, say
        self.chance = random.Random(f"{seed}/{numbers[0]}")
        self.folder = world.home / "declared"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        world.folder = self.folder
        engines = list(world.servers)
        self.histories = [self._made(seed, n, engines[n % len(engines)], without) for n in numbers]

    def _server(self, h: History) -> Server:
        return self.world.servers[h.engine]

    def _made(self, seed: int, number: int, engine: str, without: frozenset[str]) -> History:
        """A history that the platform does not refuse, with its table."""
        for attempt in range(ATTEMPTS):
            h = history(seed, number, engine, without, attempt)
            self._drop(h)
            self._server(h).run(*h.ddl())
            path = self.folder / f"{h.name}.sql"
            path.write_text(h.declaration())
            writer = Writer(h, self._server(h), 99, threading.Lock())
            connection = self._server(h).open()
            for _ in range(self.chance.choice((1, 20))):
                with suppress(*ERRORS):
                    writer.insert(connection)
            connection.close()
            if not (why := refusal(path)):
                return h
            self.found.refused[" ".join(why.split()[:12])] += 1
            self._keep(h, "refused", [why])
            path.unlink()
            self._drop(h)
        raise SystemExit(f"history {number}: {ATTEMPTS} captures were refused, the last one: {why}")

    def run(self, kills: int, cuts: int) -> None:
        for h in self.histories:
            self.found.engines[h.engine] += 1
            self.found.keys.update(f"{h.engine} {c.kind.ddl}" for c in h.key)
            self.found.cursors[f"{h.engine} {h.cursor.ddl}{' auto' if h.cursor.auto else ''}"] += 1
        writers = self._writers()
        self.world.start_worker()
        try:
            self._break(kills, cuts)
        finally:
            for writer in writers:
                writer.over.set()
            self._end(writers)
        self.found.operations += sum(w.done for w in writers)
        self._check({w.history.name for w in writers if w.late})
        self.world.end_worker()
        for h in self.histories:
            self._drop(h)
        self._forget_topics()

    def _end(self, writers: Sequence[Writer]) -> None:
        """Wait for all; one may wait for what another prepared and was cut off from."""
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
        made = []
        for h in self.histories:
            fresh = threading.Lock()
            made += [Writer(h, self._server(h), n, fresh, partial(self._polls, h.name)) for n in range(WRITERS)]
        for writer in made:
            writer.start()
        return made

    def _polls(self, name: str) -> int:
        row = self.world.captures.rows().get(name)
        return row.polls if row else 0

    def _break(self, kills: int, cuts: int) -> None:
        ways = outages(self.world)
        plan = ["kill"] * kills + ["outage"] * cuts
        self.chance.shuffle(plan)
        names = [h.name for h in self.histories]
        for what in plan:
            # What is killed sooner is mostly still at its start.
            if self.chance.random() < 0.7:
                self.world.works(names)
            time.sleep(self.chance.choice((self.chance.uniform(0, 2), self.chance.uniform(2, 7))))
            count = self.found.kills if what == "kill" else self.found.outages
            kinds = list(KILLS) if what == "kill" else list(ways)
            least = min(count[kind] for kind in kinds)
            # The kind that was tried least, so that none is left out.
            kind = self.chance.choice([kind for kind in kinds if count[kind] == least])
            said = KILLS[kind](self.world, self.chance) if what == "kill" else ways[kind](self.chance)
            count[kind] += 1
            self._say(f"{kind}: {said}")
            if self.chance.random() < 0.3:
                self._ask_something()
        if not self.world.works(names, POLLS):
            self._say("not all of them have polled often")
        time.sleep(LAST)

    def _ask_something(self) -> None:
        """A comparison or a new snapshot while everything goes on."""
        from penstock.control.rows import Actor

        h = self.chance.choice(self.histories)
        if "snapshot" in h.features:
            self.world.captures.ask(h.name, self.chance.choice(("snapshot", "reconcile")), Actor("histories", "test"))

    # The comparison

    def _check(self, late: set[str]) -> None:
        names = [h.name for h in self.histories]
        failed = self.world.asked(names, "poll")
        failed |= self.world.asked([n for n in names if n not in failed], "poll")
        rows = self.world.captures.rows()
        alone = {name for name in names if not (row := rows.get(name)) or not row.drift}
        self.found.by_polls += len(alone - failed.keys())
        wrong = self._compared(exact=False)
        behind = [h.name for h in self.histories if wrong[h.name] and h.name not in failed]
        if behind:
            # What heals by itself was not lost.
            time.sleep(3)
            self.world.asked(behind, "poll")
            wrong = self._compared(exact=False)
        for h in self.histories:
            if h.name in failed:
                self._mistake(h, "stopped", [failed[h.name]])
            elif wrong[h.name] and h.name not in late:
                self._mistake(h, "before the reconcile", wrong[h.name])
        again = self.world.asked([n for n in names if n not in failed], "reconcile")
        wrong = self._compared(exact=True, count=True)
        for h in self.histories:
            if h.name in again:
                self._mistake(h, "reconcile", [again[h.name]])
            elif wrong[h.name] and h.name not in failed:
                self._mistake(h, "after the reconcile", wrong[h.name])
        self.found.histories += len(self.histories)

    def _compared(self, *, exact: bool, count: bool = False) -> dict[str, list[str]]:
        tables: dict[str, tuple[Rows, set[tuple[object, ...]]]] = {}
        for h in self.histories:
            tables[h.name] = expected(h, self._server(h))
        there = topics(self.world.broker.bootstrap, self.histories)
        if count:
            self.found.records += sum(topic.records for topic in there.values())
            self.found.rows += sum(len(rows) for rows, _ in tables.values())
        return {h.name: compared(h, there.get(h.name, Topic()), *tables[h.name], exact=exact) for h in self.histories}

    def _mistake(self, h: History, when: str, mistakes: list[str]) -> None:
        said = f"{h.name} ({h.engine}) {when}: {' | '.join(mistakes)}"
        self.found.mistakes.append(said[:2000])
        self._say(f"MISTAKE {said[:700]}")
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
        for done in client.delete_topics([h.name for h in self.histories]).values():
            with suppress(Exception):  # it may never have been made
                done.result(30)


def refusal(path: Path) -> str:
    """Why the platform refuses a declared capture; empty if it takes it."""
    try:
        explain.first_row(read(path))
    except PenstockError as e:
        return str(e)
    return ""
