"""`make test` runs every stream that this repository ships, in every way that the stream allows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.operations.recompute import check_chain
from penstock.engine.session import session_for
from penstock.engine.state import fold
from penstock.engine.state.restore_rules import restorable_fold
from penstock.errors import DeclarationError
from penstock.model.stream import Stream
from penstock.settings import PROJECT
from penstock.testing.case_file import StreamCase, Way, read_cases
from penstock.testing.case_run import NotPossible
from penstock.testing.case_ways import check_recompute
from tests.support.stream_cases import MAX_QUICK_STEPS

CATALOG = catalog.load()
EVERY = {**CATALOG.streams, **CATALOG.disabled}
# An archive keeps records as they are, in an object store: tests/integration/archive.
STREAMS = {name: stream for name, stream in EVERY.items() if not {name} & {*CATALOG.sinks, *CATALOG.archives}}
FILES = [read_cases(path) for path in sorted((PROJECT / "tests" / "streams").glob("*.yaml"))]
CASES = [case for file in FILES for case in file.cases.values()]

TABLES, INPUTS, NO_WINDOWS = "it joins tables", "it reads more than one input", "it does not count by windows alone"
SPARKS_STATE, NO_QUERY = "its state is Spark's own", "its fold does not say how its topics hold it"
# Why a stream cannot be run in a way.
IMPOSSIBLE: dict[Way, dict[str, str]] = {
    "stream": {},
    "recompute": {
        "agents-active": NO_WINDOWS,
        "agents-recheck": TABLES,
        "alerts": TABLES,
        "assignments": TABLES,
        "device-contacts": INPUTS,
        "enriched-walk-ins": INPUTS,
        "walk-in-counts": INPUTS,
        "walk-ins": TABLES,
    },
    "rebuild": {
        "agents-active": NO_QUERY,
        "agents-recheck": NO_QUERY,
        "alerts": NO_QUERY,
        "assignments": NO_QUERY,
        "metric-bundles": SPARKS_STATE,
        "metric-minutes": SPARKS_STATE,
        "metric-summaries": SPARKS_STATE,
        "topic-quality": SPARKS_STATE,
    },
}


def is_tried(case: StreamCase, way: Way) -> bool:
    """Whether `make test` runs a case in a way, and does not skip it."""
    if "long" in case.markers or way not in case.ways or (way != "stream" and len(case.steps) > MAX_QUICK_STEPS):
        return False
    try:
        if way == "recompute":
            check_recompute(case, [EVERY[name] for name in case.streams])
    except NotPossible:
        return False
    return way != "rebuild" or not any(step.late for step in case.steps)


@pytest.mark.parametrize("way", IMPOSSIBLE)
def test_every_stream_has_a_case_in_every_way_that_it_allows(way: Way) -> None:
    tried = {name for case in CASES if is_tried(case, way) for name in case.streams}
    missing = STREAMS.keys() - tried - IMPOSSIBLE[way].keys()
    assert not missing, f"give these a case in tests/streams with ways: [{way}], of {MAX_QUICK_STEPS} steps at most"
    assert not tried & IMPOSSIBLE[way].keys(), "these have one: no reason is needed"


def test_every_sink_has_a_case() -> None:
    assert {case.sink for file in FILES for case in file.documents.values()} == CATALOG.sinks.keys()


def refusal(check: Callable[[Stream], object], stream: Stream) -> str:
    with pytest.raises(DeclarationError) as e:
        check(stream)
    return str(e.value)


def test_the_reasons_are_those_of_the_engine(spark: SparkSession) -> None:
    def check_rebuild(stream: Stream) -> None:
        session = session_for(spark, stream)
        with fold.current_context() as context:
            tables = plan_fingerprint.empty_tables(stream, session)
            plan_fingerprint.build_frame(session, stream, "nowhere:1", tables)
        restorable_fold(stream, context)

    checks: dict[Way, Callable[[Stream], object]] = {
        "recompute": lambda stream: check_chain([stream]),
        "rebuild": check_rebuild,
    }
    for way, check in checks.items():
        given = {name: refusal(check, STREAMS[name]) for name in IMPOSSIBLE[way]}
        assert {name for name, reason in IMPOSSIBLE[way].items() if reason not in given[name]} == set(), given
