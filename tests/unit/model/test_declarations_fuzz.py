"""Whatever is given to a declaration, it is one or a DeclarationError says why not."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import catalog
from penstock.errors import DeclarationError
from penstock.model.capture import parse
from penstock.streams import (
    Combiner,
    EmitChanges,
    EmitFinal,
    Input,
    Stateless,
    Stream,
    StreamJoin,
    Table,
    Timers,
    Topic,
    TopicOutput,
)
from tests.support.random_cases import tries

TRIES = tries(2000)
SEED = 20261122
SECOND = timedelta(seconds=1)
TEXTS = [
    "", " ", "x", "X", "a-b", "-", "a" * 300, "a b", "a\nb", "\0", "é", "\ud800", "..", "penstock.commits", "a.b", "(",
    "[", "*", ".*", "(?P<", "1", "BIGINT", "a BIGINT", "a BIGINT NOT NULL", "a BIGINT, a STRING", "a BIGINT,", "a",
    "a NOT", "a STRUCT<b: INT", "a ARRAY<ARRAY<ARRAY<INT>>>", "a MAP<INT, INT>", "a DECIMAL(99, 9)", "timestamp",
    "timestamp_millis(at)", "timestamp_millis(", "at + ", "'", "/* ", "-- x", "CASE", "x -> x", "count", "keep", "stop",
    "go on", "SELECT", "SELECT * FROM records", "key", "event_time", "1e999", "NULL", "{}", "${x}", "%s", "a" * 100_000,
]  # fmt: skip
STRANGE: list[Any] = [
    *TEXTS, None, True, False, 0, 1, -1, 2, 10**30, 0.5, -0.5, float("nan"), float("inf"), 1j, b"", b"a", b"\xff", (),
    (1,), ("a",), ("a", "a"), ("a", None), [], ["a"], [[]], {}, {"a": 1}, {1: "a"}, {"": None}, set(), {"a"}, object(),
    object, Stateless, Stateless(), SECOND, -SECOND, timedelta(0), timedelta.max, timedelta.min,
    timedelta(microseconds=1), len, lambda: None, max, dict, Topic("t"), Topic("t", compacted=True), int, range(3),
    TopicOutput(Topic("o"), value="v"), Input(Topic("i")), Table(Topic("c", compacted=True), "a BIGINT"), Ellipsis,
]  # fmt: skip


def rows(given: Any) -> Any:
    return given


def two(a: Any, b: Any) -> Any:
    return a, b


TOPIC, COMPACT = Topic("given"), Topic("table", compacted=True)
GIVEN = Input(TOPIC, schema="at BIGINT NOT NULL", event_time="timestamp_millis(at)")
KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "topic": (
        Topic,
        {"name": "a", "partitions": 2, "compacted": False, "retention": SECOND, "heartbeat_every": 1.0,
         "may_add_partitions": True,
         "config": {"retention.ms": "-1"}},
    ),
    "input": (
        Input,
        {"topic": TOPIC, "pattern": "", "schema": "at BIGINT NOT NULL", "event_time": "timestamp_millis(at)",
         "max_ahead": SECOND, "combine": None, "late_records": "count", "dead_letters": "keep",
         "on_data_loss": None},
    ),
    "table": (Table, {"topic": COMPACT, "schema": "a BIGINT"}),
    "combiner": (Combiner, {"schema": "n BIGINT", "sql": "SELECT count(*) AS n FROM records", "reads": ("key",)}),
    "output": (TopicOutput, {"topic": Topic("out"), "key": "k", "value": ("a", "b")}),
    "final": (EmitFinal, {"window": SECOND, "grace": SECOND, "first_step": None, "phase": timedelta(0)}),
    "updates": (EmitChanges, {"window": SECOND, "grace": SECOND, "phase": timedelta(0)}),
    "joined": (StreamJoin, {"within": SECOND, "grace": SECOND}),
    "timed": (Timers, {"tick": SECOND, "grace": SECOND}),
    "stream": (
        Stream,
        {"name": "s", "app": "a", "inputs": {"given": GIVEN}, "transform": rows,
         "output": TopicOutput(Topic("out"), key="k", value="v"), "output_mode": Stateless(), "shuffle_partitions": 1,
         "every": 0.0, "max_records": 0, "steps": None},
    ),
    "stream of two": (
        Stream,
        {"name": "s", "app": "a", "inputs": {"a": GIVEN, "b": Table(COMPACT, "x BIGINT")}, "transform": two,
         "output": {name: TopicOutput(Topic(name), key="k", value="v") for name in "xy"},
         "output_mode": EmitChanges(SECOND, SECOND), "steps": 1},
    ),
}  # fmt: skip


def near(chance: random.Random, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of which some are something else, nearly the same, or not there."""
    found = dict(given)
    for name in chance.sample(list(found), chance.choice((1, 1, 1, 2, 3)) if len(found) > 2 else 1):
        old = found[name]
        if isinstance(old, str) and old and chance.random() < 0.4:
            at = chance.randrange(len(old))
            found[name] = chance.choice((old[:at], old[:at] + chance.choice("()<>,.'\"` \n\0é") + old[at:], old * 2))
        elif isinstance(old, dict) and chance.random() < 0.7:
            key = chance.choice(list(old))
            found[name] = {**old, key: chance.choice(STRANGE)}
        elif chance.random() < 0.05:
            del found[name]
        else:
            found[name] = chance.choice(STRANGE)
    return found


def used(made: Any) -> None:
    """What the catalog and the engine ask of a declaration."""
    repr(made)
    for what in ("watermark_delay", "window_length", "window_phase", "record_retention", "heartbeat_schedule",
                 "fails_on_data_loss", "dead_letter_topic", "fields", "kind", "reads",
                 "writes", "side_outputs", "keeps_late_records", "group", "late_topic", "keyed", "name"):  # fmt: skip
        getattr(made, what, None)
    if isinstance(made, Topic):
        made.settings()
        assert made.compacts in (True, False)
    if isinstance(made, Stream):
        list(made.topics())
        catalog.build([made])


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_declaration_or_a_declaration_error(kind: str) -> None:
    make, given = KINDS[kind]
    used(make(**given))
    chance, made, crashes = random.Random(f"{SEED} {kind}"), 0, {}
    for _ in range(TRIES):
        arguments = near(chance, given)
        try:
            used(make(**arguments))
            made += 1
        except DeclarationError:
            pass
        except TypeError as e:
            # Python's own word for an argument that is missing.
            if "missing" not in str(e):
                crashes[repr(e)] = arguments
        except Exception as e:
            crashes[repr(e)] = arguments
    assert not crashes, "\n".join(f"{e[:200]}: {repr(a)[:600]}" for e, a in list(crashes.items())[:8])
    assert 0 < made < TRIES


CAPTURE = """CAPTURE INTO ledger PARTITIONS 2 FROM mysql demo KEY (id) CURSOR changed DELETED WHEN (gone = 1)
EVERY 50 MILLISECONDS OVERLAP 2 SECONDS AS SELECT id, version, gone, changed FROM ledger"""
WORDS = [*CAPTURE.split(), "NULL", "(", ")", ",", ";", "'", '"', "`", "--", "/*", "*/", "0", "-1", "9" * 40, "1.5",
         "EVERY", "AS", "SELECT", "\0", "é", "\ud800", "RECONCILE", "LOW", "UNION", "é" * 1000]  # fmt: skip


def test_a_capture_is_one_or_a_declaration_error(tmp_path: Path) -> None:
    chance, made, crashes = random.Random(SEED), 0, {}
    for _ in range(TRIES):
        words = CAPTURE.split(" ")
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(words))
            match chance.randrange(4):
                case 0:
                    words.insert(at, chance.choice(WORDS))
                case 1:
                    words[at] = chance.choice(WORDS)
                case 2:
                    words.pop(at)
                case _:
                    other = chance.randrange(len(words))
                    words[at], words[other] = words[other], words[at]
        text = " ".join(words)
        try:
            repr(parse(text, tmp_path / "ledger.sql"))
            made += 1
        except DeclarationError:
            pass
        except Exception as e:
            crashes[repr(e)] = text
    assert not crashes, "\n".join(f"{e[:200]}: {text[:400]!r}" for e, text in list(crashes.items())[:8])
    assert 0 < made < TRIES
