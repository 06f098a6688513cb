"""Streams in SQL: which statements declare what, and what is said of the others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from penstock.catalog import load, load_partial, mistakes_of_app
from penstock.catalog.validation import build
from penstock.errors import DeclarationError
from penstock.model.input import Input
from penstock.model.output import TopicOutput
from penstock.model.output_mode import EmitFinal, Stateless
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import input_names, sql_stream
from penstock.model.sql_stream import SqlStream
from penstock.model.stream import Stream
from penstock.model.topic import Topic

FIELDS = "(shop STRING NOT NULL, amount DOUBLE, at BIGINT NOT NULL)"
TIME = "EVENT TIME timestamp_millis(at)"
READ = f"READ orders AS JSON {FIELDS} {TIME}"
REFUNDS = f"READ refunds AS JSON {FIELDS} {TIME}"
JOINED = "VALUE x AS SELECT 1 AS x FROM orders JOIN refunds USING (shop)"
FINAL = "EMIT FINAL WINDOW 1 MINUTE GRACE 10 SECONDS"
SELECT = "AS SELECT shop, sum(amount) AS total FROM orders GROUP BY shop, window(event_time, '1 minute')"
PLAIN = "AS SELECT shop, amount FROM orders"
MINUTE = timedelta(minutes=1)


def declared(text: str, name: str = "totals") -> SqlStream:
    return parse(text, Path(f"sql/streams/{name}.sql"))


def stream(text: str, **topics: Topic) -> Stream:
    return sql_stream(declared(text), {topic.name: topic for topic in topics.values()})


def test_it_is_the_stream_that_python_declares() -> None:
    one = stream(f"STREAM INTO totals-topic {READ} KEY (shop) VALUE total {FINAL} EVERY 10 SECONDS APP orders {SELECT}")
    orders = Input(Topic("orders"), schema=FIELDS[1:-1], event_time="timestamp_millis(at)")
    assert one == Stream(
        name="totals", app="orders", inputs={"orders": orders}, transform=one.transform,
        output=TopicOutput(Topic("totals-topic"), key=("shop",), value="total"),
        output_mode=EmitFinal(window=MINUTE, grace=timedelta(seconds=10)), every=10.0,
    )  # fmt: skip
    assert one.location == "sql/streams/totals.sql:1:1"


def test_inputs_have_the_names_of_topics_as_python_writes_them() -> None:
    one = declared(
        "STREAM INTO t READ a-b.c AS JSON (timestamp TIMESTAMP) READ 1st AS JSON (timestamp TIMESTAMP) "
        "AS SELECT 1 AS x FROM `a-b.c`, `1st`"
    )
    assert input_names(one) == ["a_b_c", "_1st"]


@pytest.mark.parametrize("topic", ["out-7d", "prices-1s", "7d-1bd.x", "a.1.5d-10L", "a-0x1f-1e5", "a-1S_b.c"])
def test_a_topic_may_have_the_name_of_a_number_with_a_type(topic: str) -> None:
    one = stream(f"STREAM INTO {topic} COMPACTED {READ} KEY shop VALUE total {FINAL} {SELECT}")
    assert one.output_names == (topic,)


@pytest.mark.parametrize("written", ["10S", "10d", "10SECONDS"])
def test_a_duration_without_a_blank_is_refused_as_it_is_written(written: str) -> None:
    with pytest.raises(
        DeclarationError, match=rf"a duration is no whole number above 0; got: {written}; hint: write a blank"
    ):
        stream(f"STREAM INTO out {READ} KEY shop VALUE total {FINAL} EVERY {written} {SELECT}")


@pytest.mark.parametrize("topic", ["return", "import", "None"])
def test_a_topic_may_have_the_name_of_a_keyword_of_python(topic: str) -> None:
    found = stream(f"STREAM INTO out READ {topic} AS JSON (timestamp TIMESTAMP) AS SELECT timestamp FROM `{topic}`")
    assert [*found.sources] == [f"_{topic}"]


def test_topics_are_those_that_other_declarations_declare() -> None:
    first = declared(f"STREAM INTO middle PARTITIONS 2 {READ} {PLAIN}", "first")
    last = declared(
        "STREAM INTO last READ middle AS JSON (timestamp TIMESTAMP) AS SELECT timestamp FROM middle", "last"
    )
    python = Stream(
        "python", "p", {"orders": Input(Topic("orders", partitions=8), schema="timestamp TIMESTAMP")},
        lambda orders: orders, TopicOutput(Topic("out"), value="timestamp"), Stateless(),
    )  # fmt: skip
    catalog = build([python], sql_streams=[last, first])
    assert {name: catalog.topics[name].partitions for name in ("orders", "middle")} == {"orders": 8, "middle": 2}
    assert catalog.streams["last"].inputs["middle"].topic == catalog.topics["middle"]
    assert {one.app for one in catalog.streams.values()} == {"p", "streams"}
    with pytest.raises(DeclarationError, match="have one name; got: python"):
        build([python], sql_streams=[declared(f"STREAM INTO t {READ} {PLAIN}", "python")])


SETTING = (
    "SETTING wait 30 MINUTES FOLD totals FROM orders BY shop STATE (total DOUBLE) ROWS (shop STRING) "
    "UPDATE AS (SELECT shop, getvariable('wait') AS total FROM records) EMIT AS (SELECT shop FROM folded) "
    "INPUT RETENTION wait APP shop-floor AS SELECT shop FROM totals"
)
VARIABLE = "PENSTOCK_SHOP_FLOOR_WAIT"


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        (None, timedelta(minutes=30)), ("PT10M", timedelta(minutes=10)), ("90", timedelta(seconds=90)),
        ("0", timedelta(0)), ("1.5", timedelta(seconds=1.5)),
    ],
)  # fmt: skip
def test_a_setting_is_that_of_its_variable_or_the_default(
    text: str | None, wait: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    fold = declared(f"STREAM INTO t {READ} {SETTING}").folds[0].fold
    assert (fold.variables, fold.input_retention) == ({"wait": wait}, wait)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", f"{VARIABLE} is no duration; got: 'soon'; hint: write ISO 8601"),
        ("", f"{VARIABLE} is no duration; got: ''"),
        ("P999999999999D", f"{VARIABLE} is no duration; got: 'P999999999999D'"),
        ("-PT1M", f"{VARIABLE} is below zero; got: '-PT1M'; hint: write ISO 8601"),
        (
            "0.0001",
            "setting wait is not a valid duration; got: 0.1 MILLISECONDS; hint: give a duration",
        ),
    ],
)
def test_a_variable_that_is_no_duration_is_refused(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    column = len(f"STREAM INTO t {READ} SETTING ") + 1
    with pytest.raises(DeclarationError, match=f"totals.sql:1:{column}: {message}"):
        declared(f"STREAM INTO t {READ} {SETTING}")


def test_settings_of_a_topic_are_those_of_all_its_declarations() -> None:
    python = Stream(
        "python", "p", {"t": Input(Topic("t", config={"a": "1"}), schema="timestamp TIMESTAMP")},
        lambda t: t, TopicOutput(Topic("out"), value="timestamp"), Stateless(),
    )  # fmt: skip
    text = f"STREAM INTO t WITH ('b' = '2') {READ} {PLAIN}"
    assert build([python], sql_streams=[declared(text)]).topics["t"].config == {"a": "1", "b": "2"}
    with pytest.raises(DeclarationError, match=r"totals.sql:1:1: one topic is declared twice, differently; got: t"):
        build([python], sql_streams=[declared(text.replace("'b'", "'a'"))])


def test_a_mistake_in_one_file_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "sql" / "streams"
    folder.mkdir(parents=True)
    (folder / "good.sql").write_text(f"STREAM INTO good-rows {READ} APP orders {PLAIN}")
    assert list(load(tmp_path).streams) == ["good"]
    (folder / "bad.sql").write_text(f"STREAM INTO bad-rows {READ} APP other")
    (folder / "same.sql").write_text(f"STREAM INTO good-rows {READ} {PLAIN}")
    catalog, broken = load_partial(tmp_path)
    assert list(catalog.streams) == ["good"]
    assert sorted(e.path.name for e in broken) == ["bad.sql", "same.sql"]
    assert {e.path.name: e.app for e in broken} == {"bad.sql": "other", "same.sql": "streams"}
    of = {app: [e.path.name for e in mistakes_of_app(app, catalog, broken)] for app in ("orders", "other", "streams")}
    assert of == {"orders": [], "other": ["bad.sql"], "streams": ["same.sql"]}


@pytest.mark.parametrize(
    ("text", "app"),
    [
        ("app `other` AS SELEC a FROM t", "other"),
        ("-- the app is late\nAPP other\nAS SELEC a", "other"),
        ("/* app\nlate */ AS SELEC app FROM t GROUP BY app HAVING 1 ~ 2", "streams"),
        ("STREAM INT \udcff", "streams"),
    ],
)
def test_the_app_of_a_statement_that_cannot_be_read_is_what_its_text_says(tmp_path: Path, text: str, app: str) -> None:
    folder = tmp_path / "sql" / "streams"
    folder.mkdir(parents=True)
    (folder / "bad.sql").write_text(text, "utf-8", "surrogateescape")
    _, [wrong] = load_partial(tmp_path)
    assert wrong.app == app
