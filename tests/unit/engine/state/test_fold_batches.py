"""How rows are cut into batches does not matter, to any fold of any stream: its state in the end, and what comes of it.

A history is rows in the order in which they lie in their topics, and beats between them. It is folded row by row, all
at once, and cut anywhere, some batches twice. Then time comes to the same and each key has one row more: the state of
each must be the same, and so must be what a fold's `Kind` takes of the rows. Combiners are tried in
tests/integration/engine/query/test_combiners.py, which finds those of the catalog likewise.

What a rule makes of the order of rows, or of the table of their batch, is left out: what is late, what
`device-contacts` says of a time when a walk-in of that time was told already, and alert rules that change.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.agents import active, alerts, assignments, recheck
from jobs.presence import walk_ins
from penstock import catalog
from penstock.model.fold import Fold
from penstock.settings import PROJECT
from tests.support import presence_model as model
from tests.support.agent_records import ASSIGNED, CHECK_IN, T, check_in
from tests.support.agents_model import AFTER, GRACE, MINUTE
from tests.support.alert_records import LENGTH
from tests.support.alert_records import SESSION as LOOKED_AT
from tests.support.alert_records import T as BEGAN
from tests.support.fold_runner import Folding
from tests.support.presence_records import CONTACT, COUNTED, NAMED, PROBE, ranked, strong
from tests.support.random_cases import FULL, seeds
from tests.support.sql_streams import folds_in_sql, project_fold

Row = dict[str, Any]
# A row, or a beat's clock, epoch ms.
Item = Row | int


@dataclass(frozen=True)
class Kind:
    """A fold's histories. ddl: the columns of its rows; grace: as in `Folding`; history: at random; last: one row of
    each key, behind all that were given; came: what must be the same of the rows that came."""

    fold: Fold
    ddl: str
    history: Callable[[random.Random], list[Item]]
    last: Callable[[list[Row], int], list[Row]]
    came: Callable[[list[Row]], Any]
    grace: int | None = None


def every(rows: Iterable[Row]) -> list[str]:
    """All rows, in whatever order they came."""
    return sorted(str(row) for row in rows)


def newest(*key: str) -> Callable[[list[Row]], Any]:
    """The last row of each key."""
    return lambda rows: {tuple(row[name] for name in key): row for row in rows}


def each(*key: str, **columns: Any) -> Callable[[list[Row], int], list[Row]]:
    """A row of each key, of other columns and the time."""

    def made(rows: list[Row], now: int) -> list[Row]:
        keys = {tuple(row[name] for name in key) for row in rows}
        return [{**dict(zip(key, one, strict=True)), **columns, "timestamp": now} for one in sorted(keys, key=str)]

    return made


def probes(chance: random.Random) -> list[Item]:
    """In order: a walk-in is told as soon as it can be, and a late probe changes nothing that was told."""
    given: list[Row] = []
    while len(given) < 20:
        given += strong(model.histories(chance.randrange(1000)))
    return [*sorted(given, key=lambda p: p["timestamp"])[:30]]


def events(chance: random.Random) -> list[Item]:
    found = [*model.histories(chance.randrange(1000)).events, *model.histories(chance.randrange(1000)).events]
    return [*ranked(found)]


def names(chance: random.Random) -> list[Item]:
    """Walk-ins, which come again at any time, and contacts; who logs in and is removed in one millisecond."""
    found: list[Row] = []
    for device in "abc":
        n, at = 0, T + chance.randrange(MINUTE)
        choices: list[list[str | None]] = [["x"], ["x", None], ["x", None, "y"], [None, "x"]]
        for contact in chance.choice(choices):
            found.append({"device": device, "timestamp": at, "contact": contact, "record_offset": n})
            n += 1
        for _ in range(chance.randint(3, 8)):
            at += chance.choice([1, MINUTE, model.WAIT, model.WAIT + 1, 3 * model.WAIT])
            if chance.random() < 0.5:
                found.append(
                    {"device": device, "timestamp": at, "contact": chance.choice(["x", "y", None]), "record_offset": n}
                )
                n += 1
            else:
                found.append({"device": device, "timestamp": at, "business": chance.choice("12"), "since": at - 1})
    found.sort(key=lambda row: row["timestamp"])
    for walk in [row for row in found if row.get("business")]:
        if chance.random() < 0.3:
            found.insert(chance.randint(found.index(walk) + 1, len(found)), walk)
    return [*found]


def walked(chance: random.Random) -> list[Item]:
    found: list[Row] = []
    for _ in range(25):
        row = {"business": chance.choice("12"), "contact": chance.choice("xy"), "timestamp": T + chance.randrange(9)}
        one = {"count": chance.randrange(4)} if chance.random() < 0.2 else {"device": chance.choice("ab")}
        found.append({**row, **one})
    return [*found]


def check_ins(chance: random.Random) -> list[Item]:
    """Of agents whose clock is right, 200 s slow, and slow by more than they may be silent; some come twice, some are
    overtaken inside the grace, and the clock tells of silence in between."""
    placed: list[tuple[int, int, Item]] = []
    for agent, slow in (("a", 0), ("b", 200_000), ("c", 2 * AFTER), ("d", 0)):
        at = chance.randrange(MINUTE)
        for _ in range(7):
            way = chance.choice([0, 0, 5, GRACE // 2])
            one = check_in(agent, at, chance.choice("12"))
            placed.append((T + at + slow + way, 1, one))
            if chance.random() < 0.2:
                placed.append((T + at + slow + chance.randrange(2 * GRACE), 1, {**one, "account": "3"}))
            near = [10 * MINUTE, AFTER - 200_000, AFTER - GRACE // 4, AFTER - 1, AFTER, AFTER + 1, AFTER + GRACE]
            at += chance.choice([1, GRACE // 4, *near, 90 * MINUTE])
    end = max(at for at, _, _ in placed) + AFTER + GRACE
    placed += [(at, 0, at) for at in chance.sample(range(T, end, 1000), 30)]
    placed.sort(key=lambda one: one[:2])
    return [
        item if isinstance(item, int) else {**item, "written_at": at, "record_offset": n}
        for n, (at, _, item) in enumerate(placed)
    ]


def changes(chance: random.Random) -> list[Item]:
    return [
        {
            "test": str(chance.randrange(4)),
            "account": chance.choice(["1", "2", None]),
            "record_offset": n,
            "timestamp": T,
        }
        for n in range(20)
    ]


def accounts(chance: random.Random) -> list[Item]:
    return [{"account": chance.choice("123"), "timestamp": T} for _ in range(12)]


def words(chance: random.Random) -> list[Item]:
    """What agents say, and are told again of, which is behind what is newer. Behind a tombstone it may be older than
    what was said before."""
    found: list[Row] = []
    none = dict.fromkeys(("account", "online", "tests", "version", "digest"))
    for agent in "ab":
        version = 10
        for n in range(12):
            if chance.random() < 0.25:
                found.append({**none, "agent": agent, "record_offset": n, "timestamp": T})
                version = chance.choice([1, version])
                continue
            version += 1
            said = {"agent": agent, "online": True, "tests": [], "timestamp": T}
            digest = chance.choice("123")
            found.append({**said, "account": digest, "digest": digest, "record_offset": n, "version": version})
            if chance.random() < 0.4:
                found.append({**said, "account": "0", "digest": "0", "record_offset": None, "version": version - 1})
    return [*found]


def sessions(chance: random.Random) -> list[Item]:
    """In order, so that none is late, of a rule that is there and of one that is disabled."""
    found: list[Item] = []
    at = BEGAN
    for n in range(25):
        began = at // LENGTH * LENGTH
        rule = chance.choice([7, 7, 7, 8])
        hit = {"rule": rule, "selection": 1, "enabled": rule == 7, "window_start": began, "window_end": began + LENGTH}
        present = [{"rule": 7, "selection": 1}]
        value = {"value": float(n)}
        found.append({"account": chance.choice("12"), "active_rules": present, "timestamp": at, **hit, **value})
        at += chance.choice([0, 1, 500, LENGTH // 4, LENGTH])
    return found


KINDS = [
    Kind(walk_ins.VISITS, PROBE, probes, each("device", "business"), every, walk_ins.LATE),
    Kind(
        project_fold("device-contacts"), CONTACT, events,
        lambda rows, now: ranked(each("device", type="login", contact="last", business="1")(rows, now)),
        newest("device"),
    ),
    Kind(project_fold("enriched-walk-ins"), NAMED, names, each("device", contact="last", record_offset=99), every),
    Kind(
        project_fold("walk-in-counts"), COUNTED, walked,
        each("business", "contact", device="last"), newest("business", "contact"),
    ),
    Kind(
        active.AGENTS, CHECK_IN, check_ins, lambda *_: [],
        lambda rows: (
            newest("agent")([r for r in rows if r["output"] == "active"]),
            every(r for r in rows if r["output"] == "offline"),
        ),
    ),
    Kind(
        recheck.TEST_ACCOUNTS, "test STRING, account STRING, record_offset BIGINT, timestamp BIGINT",
        changes, lambda *_: [],
        lambda rows: {row["account"] for row in rows},
    ),
    Kind(recheck.DISTINCT_ACCOUNTS, "account STRING, timestamp BIGINT", accounts, lambda *_: [], newest("account")),
    Kind(
        assignments.ASSIGNED, ASSIGNED, words, lambda *_: [],
        lambda rows: {row["agent"]: row["account"] for row in rows},
    ),
    Kind(alerts.WINDOWS, LOOKED_AT, sessions, lambda *_: [], every, 500),
]  # fmt: skip


def ran(kind: Kind, items: Sequence[Item], cuts: Sequence[int], folder: Path, chance: random.Random) -> tuple[Any, Any]:
    """What came of it, and the state."""
    folding = Folding(kind.fold, kind.ddl, folder, kind.grace)
    came: list[Row] = []

    def take(batch: Sequence[Item], clock: int = 0) -> None:
        rows = [one for one in batch if not isinstance(one, int)]
        clock = max([clock, *(one for one in batch if isinstance(one, int))])
        came.extend(folding.take(rows, clock=clock, again=chance.random() < 0.1))

    for one, other in zip([0, *cuts], [*cuts, len(items)], strict=True):
        take(items[one:other])
    rows = [one for one in items if not isinstance(one, int)]
    # Whatever is open for time to decide is decided.
    now = max(row["timestamp"] for row in rows) + 3 * AFTER
    take([], clock=now)
    take(kind.last(rows, now), clock=now)
    take([], clock=now)
    return kind.came(came), every(folding.state())


@pytest.mark.parametrize("seed", seeds(1, 6))
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.fold.name) for kind in KINDS])
def test_batches_may_be_cut_anywhere(kind: Kind, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    items = kind.history(chance)
    inner = range(1, len(items))
    alone = ran(kind, items, inner, tmp_path / "alone", chance)
    for count in (0, 1, 4, 9) if FULL else (0, 4):
        cuts = sorted(chance.sample(inner, min(len(inner), count)))
        rows, state = ran(kind, items, cuts, tmp_path / str(count), chance)
        assert (rows, cuts) == (alone[0], cuts)
        assert (state, cuts) == (alone[1], cuts)


def test_every_fold_is_tried() -> None:
    """Of the modules that the catalog has loaded; give a new one its histories above."""
    in_sql = list(folds_in_sql(catalog.load().streams.values()))
    loaded = [module for name, module in sys.modules.items() if name.split(".")[0] == "jobs"]
    found = {id(one): one for module in loaded for one in vars(module).values() if isinstance(one, Fold)}
    assert [one.name for one in [*found.values(), *in_sql] if one not in [kind.fold for kind in KINDS]] == []
    trees = [ast.parse(path.read_text()) for path in (PROJECT / "jobs").rglob("*.py")]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = sum(isinstance(call, ast.Name) and call.id == "Fold" for call in calls)
    assert made == len(found), "make each fold a variable of its module"
