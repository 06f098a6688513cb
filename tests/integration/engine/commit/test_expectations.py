"""Rules of a stream's rows on real batches: kept, put aside as dead letters, or failing the batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.operations.stream_explanation import explain
from penstock.engine.query.stream_run import StreamRun
from penstock.errors import DeclarationError
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.model.topic import DEAD_LETTERS
from penstock.streams import Expectation, F, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.wait import tended, wait_until

pytestmark = pytest.mark.integration

READ = "READ sold AS JSON (shop STRING, amount BIGINT, at BIGINT NOT NULL) EVENT TIME timestamp_millis(at)"
AT = 1_700_000_000_000
ROWS = "AS SELECT shop, amount FROM sold"
MINUTES = (
    "KEY (shop, minute) VALUE total EMIT {} WINDOW 1 MINUTE GRACE 10 SECONDS {} AS "
    "SELECT shop, unix_millis(window.start) AS minute, sum(amount) AS total FROM sold "
    "GROUP BY shop, window(event_time, '1 minute')"
)


def declared(clauses: str, name: str = "checked") -> Stream:
    stream = sql_stream(
        parse(f"STREAM INTO checked-sales PARTITIONS 1 {READ} {clauses}", Path(f"sql/streams/{name}.sql")), {}
    )
    [given] = stream.sources.values()
    assert given.topic
    kept = replace(given, topic=replace(given.topic, config={"retention.ms": "-1"}))
    return replace(stream, inputs={"sold": kept})


def rule(predicate: str, action: str, name: str = "positive") -> str:
    return f"EXPECT {name} {predicate} ON VIOLATION {action}"


def sell(bootstrap: str, *amounts: int | None, shop: str | None = "north", at: int = AT) -> None:
    texts = [json.dumps({"shop": shop, "amount": amount, "at": at}) for amount in amounts]
    send(bootstrap, [Record("sold", None, text, timestamp=at) for text in texts])


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, *declared(ROWS).topics())
    return fresh_broker.bootstrap


def amounts(bootstrap: str, topic: str = "checked-sales") -> list[int | None]:
    return [json.loads(r.value or "null")["amount"] for r in read(bootstrap, topic)]


def letters(bootstrap: str) -> list[tuple[int | None, str]]:
    """Amount and reason of the dead letters, each with its output and stream in the headers."""
    found = []
    for record in read(bootstrap, DEAD_LETTERS.name):
        headers = dict(record.headers)
        assert (headers["penstock.output"], headers["penstock.stream"]) == ("checked-sales", "checked")
        found.append((json.loads(record.value or "null")["amount"], headers["penstock.reason"]))
    return found


def violations(run: StreamRun) -> dict[str, tuple[str, int]]:
    counts = run.figures.expectations or {}
    assert all(sum(rule["minutes"].values()) == rule["violations"] for rule in counts.values())
    return {name: (rule["action"], rule["violations"]) for name, rule in counts.items()}


def test_kept_rows_are_written_and_counted(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """A predicate that is NULL is violated, as is a rule of topic quality."""
    stream = declared(f"{rule('amount > 0', 'KEEP')} {rule('amount < 100', 'KEEP', 'small')} {ROWS}")
    sell(bootstrap, 1, -1, None, 200)
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        sell(bootstrap, -5, 3)
        run.process_all_available()
        assert violations(run) == {"positive": ("keep", 3), "small": ("keep", 2)}
        assert (run.figures.rows_out, run.figures.dead) == (6, 0)
    assert amounts(bootstrap) == [1, -1, None, 200, -5, 3]


def test_dead_letters_name_the_rules_that_a_row_violates(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    stream = declared(
        f"{rule('amount > 0', 'DEAD LETTER')} {rule('amount <> -7', 'dead letter', 'known')} "
        f"{rule('amount < 100', 'KEEP', 'small')} {ROWS}"
    )
    sell(bootstrap, 1, -1, 2, -7, None, 200)
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert violations(run) == {"positive": ("dead letter", 3), "known": ("dead letter", 2), "small": ("keep", 2)}
        assert (run.figures.rows_out, run.figures.dead) == (3, 3)
    assert amounts(bootstrap) == [1, 2, 200]
    positive, known = "the row violates positive: amount > 0", "the row violates known: amount <> -7"
    assert letters(bootstrap) == [(-1, positive), (-7, f"{positive}; {known}"), (None, f"{positive}; {known}")]


@pytest.mark.parametrize("written", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_batch_that_dies_before_its_commit_has_each_dead_letter_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """It dies before or after its transaction: then Spark has not noted the batch, and it runs again."""
    stream = declared(f"{rule('amount > 0', 'DEAD LETTER')} {ROWS}")
    sell(bootstrap, 1, -1)
    write = TopicWriter.write
    calls: list[int] = []

    def dies(self: TopicWriter, rows: object, mark: object) -> int:
        calls.append(1)
        if written:
            write(self, rows, mark)  # type: ignore[arg-type]
        raise OSError("the driver dies here")

    monkeypatch.setattr(TopicWriter, "write", dies)
    run = StreamRun(stream, spark, bootstrap, str(tmp_path), ProgressRow("checked", "streams", "i"))
    run.start()
    wait_until(lambda: not run.active, what="the batch dies")
    run.stop()
    assert calls
    monkeypatch.setattr(TopicWriter, "write", write)
    with running(stream, spark, bootstrap, tmp_path) as again:
        again.process_all_available()
        sell(bootstrap, -2, 3)
        again.process_all_available()
    assert amounts(bootstrap) == [1, 3]
    assert [amount for amount, _ in letters(bootstrap)] == [-1, -2]


def test_a_failing_rule_blocks_the_stream_until_another_release(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    stream = declared(f"{rule('amount > 0', 'FAIL')} {rule('amount < 100', 'KEEP', 'small')} {ROWS}")
    sell(bootstrap, 200, -1, -2)
    with running(stream, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked"), what="the stream is blocked")
        error = run.figures.error or ""
        for part in (
            "expectation positive is violated, which fails the batch: amount > 0",
            '2 rows for checked-sales, the first: value {"shop":"north","amount":-1}',
            "release app streams",
        ):
            assert part in error
        # What is not written is not counted.
        assert violations(run) == {"positive": ("fail", 0), "small": ("keep", 0)}
    assert read(bootstrap, "checked-sales") == []
    with running(declared(f"{rule('amount > 0', 'KEEP')} {ROWS}"), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert violations(run) == {"positive": ("keep", 2)}
    assert amounts(bootstrap) == [200, -1, -2]


@pytest.mark.parametrize("emit", ["FINAL", pytest.param("CHANGES", marks=pytest.mark.long)])
def test_changed_rules_keep_the_state(spark: SparkSession, bootstrap: str, tmp_path: Path, emit: str) -> None:
    """Spark would refuse the state of another aggregate: a rule reads none that was not there."""
    releases = [
        "",
        rule("total > 5", "KEEP"),
        f"{rule('total > 7', 'FAIL')} {rule('length(shop) < 9', 'KEEP', 'short')}",
        "",
    ]
    for release in releases:
        sell(bootstrap, 2)
        with running(declared(MINUTES.format(emit, release)), spark, bootstrap, tmp_path) as run:
            if "FAIL" in release and emit == "CHANGES":
                wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked"), what="it is blocked")
                continue
            run.process_all_available()
            assert run.figures.error is None
            if "KEEP" in release:
                assert (run.figures.expectations or {})["positive"]["violations"] == (emit == "CHANGES")
    sell(bootstrap, 1, at=AT + 300_000)
    with running(declared(MINUTES.format(emit, "")), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    totals = [r.value for r in read(bootstrap, "checked-sales")]
    assert totals == (["8"] if emit == "FINAL" else ["2", "4", "6", "8", "1"])


def test_a_closed_window_is_a_dead_letter(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    stream = declared(MINUTES.format("FINAL", rule("total > 5", "DEAD LETTER")))
    sell(bootstrap, 2)
    sell(bootstrap, 9, at=AT + 60_000)
    sell(bootstrap, 1, at=AT + 600_000)
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert [r.value for r in read(bootstrap, "checked-sales")] == ["9"]
    assert [(r.value, json.loads(r.key or "")["shop"]) for r in read(bootstrap, DEAD_LETTERS.name)] == [("2", "north")]


def test_each_of_several_outputs_is_checked(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    def transform(sold: DataFrame) -> DataFrame:
        return sold.select("amount", F.when(F.col("amount") % 2 == 0, "even").otherwise("odd").alias("output"))

    even, odd = Topic("even-sales", partitions=1), Topic("odd-sales", partitions=1)
    create(bootstrap, even, odd)
    stream = replace(
        declared(ROWS), transform=transform,
        output={"even": TopicOutput(even, value=("amount",)), "odd": TopicOutput(odd, value=("amount",))},
        expectations=(
            Expectation("positive", "amount > 0", on_violation="dead letter"),
            Expectation("small", "output = 'odd' OR amount < 10", on_violation="keep"),
        ),
    )  # fmt: skip
    sell(bootstrap, 1, 2, -3, -4, 11, 12)
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert violations(run) == {"positive": ("dead letter", 2), "small": ("keep", 1)}
    assert (amounts(bootstrap, "even-sales"), amounts(bootstrap, "odd-sales")) == ([2, 12], [1, 11])
    found = [(dict(r.headers)["penstock.output"], r.value) for r in read(bootstrap, DEAD_LETTERS.name)]
    assert sorted(found) == [("even-sales", '{"amount":-4}'), ("odd-sales", '{"amount":-3}')]


REFUSED: Sequence[tuple[str, str]] = [
    ("amuont > 0", "Spark does not take its predicate; got: .*amuont.*; hint: .*shop, amount"),
    ("upper(shop)", "its predicate is not boolean; got: upper\\(shop\\): string"),
    ("shop", "its predicate is not boolean"),
    ("bit_count(amount)", "its predicate is not boolean; got: bit_count\\(amount\\): int"),
    ("NULL", "its predicate is not boolean"),
    ("try_avg(amount) > 0", "Spark does not take its predicate"),
    ("explode(array(true))", "Spark does not take its predicate; got: .*generator"),
    ("date'tomorrow' > date'2020-01-01'", "the rule is not deterministic"),
    ("no_such_function(amount)", "Spark does not take its predicate"),
]


@pytest.mark.parametrize(("predicate", "message"), REFUSED, ids=[predicate for predicate, _ in REFUSED])
def test_what_spark_alone_knows_is_refused_at_the_start(spark: SparkSession, predicate: str, message: str) -> None:
    stream = replace(declared(ROWS), expectations=(Expectation("positive", predicate, on_violation="keep"),))
    with pytest.raises(DeclarationError, match=message):
        explain(stream, spark)


def test_a_predicate_that_fails_makes_its_record_a_dead_letter(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """As any error of the transform does."""
    stream = declared(f"{rule('10 / amount > 0', 'KEEP')} {ROWS}")
    sell(bootstrap, 1, 0, 2)
    run = StreamRun(stream, spark, bootstrap, str(tmp_path), ProgressRow("checked", "streams", "i"))
    wait_until(lambda: tended(run.reconcile, lambda: run.report().dead == 1), what="the record is found")
    run.stop()
    assert amounts(bootstrap) == [1, 2]
    [dead] = read(bootstrap, "sold-dead-letter")
    assert json.loads(dead.value or "")["amount"] == 0
