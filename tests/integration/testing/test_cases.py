"""Cases in YAML against a real broker: what fails, and how it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.errors import DeclarationError
from penstock.testing import case_ways
from penstock.testing.case_file import CaseFile, Way, read_cases
from penstock.testing.case_run import CaseFailure, NotPossible
from penstock.testing.case_ways import check_refusal, run_case
from penstock.testing.documents import check_documents

pytestmark = pytest.mark.integration

Run = Callable[..., None]
SQL = """\
STREAM INTO other-minutes
READ orders AS JSON (shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL)
    EVENT TIME timestamp_millis(at)
KEY (shop, minute)
VALUE total
EMIT FINAL WINDOW 1 MINUTE GRACE 10 SECONDS
APP orders
AS
SELECT shop, unix_millis(window.start) AS minute, sum(amount) AS total
FROM orders
GROUP BY shop, window(event_time, '1 minute')
"""


@pytest.fixture
def run(shop: Path, spark: SparkSession, broker: Broker, tmp_path: Path) -> Run:
    """Runs a case of the stream of a new project."""

    def run(text: str, way: Way = "stream") -> None:
        path = tmp_path / "order-minutes.yaml"
        path.write_text(f"clock: 2026-01-31T12:00:20Z\ncases:\n  one:\n{text}")
        [case] = read_cases(path).cases.values()
        folder = tmp_path / "run"
        folder.mkdir()
        run_case(case, way, shop, spark, broker.bootstrap, folder)

    return run


def refusals(text: str, tmp_path: Path) -> CaseFile:
    (tmp_path / "refused.yaml").write_text(text)
    return read_cases(tmp_path / "refused.yaml")


DOCUMENT = """documents:
  one:
    sink: {sink}
    send:
      - {{key: {{id: 1}}, value: {{id: 1, name: north}}{topic}}}
    expect:
      - {{id: "1", document: {{id: 1, name: {name}, updated_at: null}}}}
"""


def test_documents_of_a_sink_are_compared(shop: Path, spark: SparkSession, tmp_path: Path) -> None:
    def check(**words: str) -> None:
        path = tmp_path / "shops.yaml"
        path.write_text(DOCUMENT.format(**{"sink": "shops-documents", "topic": "", "name": "NORTH", **words}))
        [case] = read_cases(path).documents.values()
        check_documents(case, "shops.yaml: one", shop, spark)

    check()
    check(topic=", topic: shops")
    with pytest.raises(CaseFailure, match=r"^shops\.yaml: one\n\n.*\n.*different +1 .*SOUTH(.|\n)*NORTH"):
        check(name="SOUTH")
    with pytest.raises(DeclarationError, match=r"one: a record names no topic that sink .* got: orders; hint: shops"):
        check(topic=", topic: orders")
    with pytest.raises(DeclarationError, match="one: the project has no such sink; got: shop; hint: shops-documents"):
        check(sink="shop")


def test_the_cases_of_a_new_project_pass(shop: Path, spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    cases = read_cases(shop / "tests" / "streams" / "order-minutes.yaml").cases
    for number, case in enumerate(cases.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        way: Way = "recompute" if "recompute" in case.ways else "stream"
        run_case(case, way, shop, spark, broker.bootstrap, folder)


def test_a_row_that_differs_fails_the_case(run: Run) -> None:
    with pytest.raises(CaseFailure) as e:
        run("""\
    steps:
      - about: the minute is over
        send:
          - value: {shop: north, amount: 2.5, at: !ms 2026-01-31T12:00:05Z}
        clock: 2026-01-31T12:01:10Z
        expect:
          - key: {shop: north, minute: !ms 2026-01-31T12:00:00Z}
            value: 3.5
""")
    assert str(e.value) == (
        "order-minutes.yaml:5: one, step 1 (the minute is over): records of order-minutes\n\n"
        "           key                                      expected  actual\n"
        'different  {"shop":"north","minute":1769860800000}  3.5       2.5'
    )


def test_what_is_ahead_is_told_by_the_clock_of_the_case(run: Run) -> None:
    """Five minutes ahead of the case's clock, and long ago for the machine's."""
    run("""\
    steps:
      - send:
          - value: {shop: north, amount: 1.0, at: !ms 2026-01-31T12:05:20.000Z}
          - value: {shop: north, amount: 1.0, at: !ms 2026-01-31T12:05:20.001Z}
        dead:
          - value: {shop: north, amount: 1.0, at: !ms 2026-01-31T12:05:20.001Z}
            reason: "the event time lies in the future: 2026-01-31 12:05:20.001"
""")


CHECKED = """\
STREAM INTO checked-orders
READ orders AS JSON (shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL)
    EVENT TIME timestamp_millis(at)
KEY shop
EXPECT positive amount > 0 ON VIOLATION DEAD LETTER
EXPECT small amount < 100 ON VIOLATION KEEP
APP orders
AS SELECT shop, amount FROM orders
"""


def test_rows_that_violate_an_expectation_are_dead_letters_of_a_case(shop: Path, run: Run) -> None:
    (shop / "sql" / "streams").mkdir(exist_ok=True)
    (shop / "sql" / "streams" / "checked-orders.sql").write_text(CHECKED)
    run("""\
    streams: [checked-orders]
    steps:
      - send:
          - value: {shop: north, amount: -1.0, at: !ms 2026-01-31T12:00:05Z}
          - value: {shop: south, amount: 200.0, at: !ms 2026-01-31T12:00:05Z}
          - value: none
        dead:
          - {value: none, reason: "not valid JSON: none"}
          - {value: {amount: -1.0}, reason: "the row violates positive: amount > 0"}
        expect:
          - {key: south, value: {amount: 200.0}}
""")


def test_late_records_must_be_expected(run: Run) -> None:
    with pytest.raises(CaseFailure, match=r"order-minutes.yaml:6: one, step 2: 1 records were late, not 0"):
        run("""\
    steps:
      - clock: 2026-01-31T12:01:10Z
      - send:
          - value: {shop: north, amount: 2.5, at: !ms 2026-01-31T12:00:05Z}
""")


def test_a_recompute_with_other_rows_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"key": [b'{"shop":"north","minute":1769860800000}'], "value": [b"2.0"]}
    monkeypatch.setattr(case_ways, "recompute_rows", lambda *_, **__: iter([pa.table(row)]))
    with pytest.raises(CaseFailure, match=r"records of a recompute\n\n.*\ndifferent .* 2\.5 +2\.0"):
        run(
            """\
    steps:
      - send:
          - value: {shop: north, amount: 2.5, at: !ms 2026-01-31T12:00:05Z}
        clock: 2026-01-31T12:01:10Z
        expect:
          - {key: {shop: north, minute: !ms 2026-01-31T12:00:00Z}, value: 2.5}
""",
            "recompute",
        )


def test_a_restart_goes_on(run: Run) -> None:
    run("""\
    steps:
      - send:
          - value: {shop: north, amount: 2.5, at: !ms 2026-01-31T12:00:05Z}
      - restart: true
        send:
          - value: {shop: north, amount: 1.5, at: !ms 2026-01-31T12:00:06Z}
        clock: 2026-01-31T12:01:10Z
        expect:
          - {key: {shop: north, minute: !ms 2026-01-31T12:00:00Z}, value: 4.0}
""")


@pytest.mark.parametrize(
    ("way", "text", "message"),
    [
        ("recompute", "late: 1", "records are late, and a recompute has them in time"),
        ("rebuild", "late: 0", "no state can be rebuilt of order-minutes"),
    ],
)
def test_a_way_that_a_case_cannot_go_says_why(run: Run, way: Way, text: str, message: str) -> None:
    with pytest.raises(NotPossible, match=message):
        run(f"    steps: [{{{text}}}]\n", way)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("    streams: [orders]\n    steps: [{late: 0}]\n", "the project has no such stream; got: orders"),
        ("    topics: {others: 1}\n    steps: [{late: 0}]\n", "no stream of the case reads or writes this topic"),
    ],
)
def test_a_case_that_does_not_fit_its_project_is_an_error(run: Run, text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        run(text)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("old", "new", "error", "failure"),
    [
        ("GRACE 10 SECONDS", "GRACE SOON", "refused.sql:6", ""),
        ("sum(amount)", "sum(amuont)", "amuont", ""),
        ("GRACE 10 SECONDS", "GRACE SOON", "no such part", "refused for another reason"),
        ("APP orders", "APP orders", "refused", "the statement is accepted"),
    ],
)
def test_a_refusal(
    shop: Path, spark: SparkSession, tmp_path: Path, old: str, new: str, error: str, failure: str
) -> None:
    sql = SQL.replace(old, new)
    assert new in sql
    lines = "".join(f"      {line}\n" for line in sql.splitlines())
    [refusal] = refusals(f"refused:\n  one:\n    error: {error}\n    sql: |\n{lines}", tmp_path).refused.values()
    if not failure:
        check_refusal(refusal, "refused.yaml: one", shop, spark)
        return
    with pytest.raises(CaseFailure, match=failure):
        check_refusal(refusal, "refused.yaml: one", shop, spark)


def test_pytest_collects_cases_by_name_and_tells_mistakes(shop: Path) -> None:
    (shop / "tests" / "streams" / "wrong.yaml").write_text("cases:\n  one: {step: []}\n")
    command = [sys.executable, "-m", "pytest", "-p", "penstock.testing.plugin", "--collect-only", "-q", "tests/streams"]
    # Options of whoever runs this test would change what is listed.
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=shop, env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    first = "tests/streams/order-minutes.yaml::a minute is summed when it is over"
    assert {f"{first}[stream]", f"{first}[recompute]"} <= set(lines)
    assert any("wrong.yaml:2: cases.one.steps: this key is missing" in line for line in lines), done.stdout
    assert done.returncode == 2
