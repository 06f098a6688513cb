"""Sinks in the catalog: each is a stream, which runs if its store has a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog import load, load_partial
from penstock.catalog.__main__ import app_summary
from penstock.catalog.listing import catalog_rows
from penstock.errors import DeclarationError
from penstock.model.sql.sink_file import parse
from penstock.settings import settings
from penstock.sinks.core.document import DocumentOutput
from penstock.sinks.core.stream import sink_stream
from tests.chaos.projects import other_project

ORDERS = """UPSERT INTO mongodb.shop.orders READ orders AS JSON (id BIGINT) KEY (id)
TOMBSTONES DELETE (record.key) AS SELECT id FROM orders"""
FOREIGN = "INSERT INTO mongodb.shop.clicks READ clicks AS TEXT APP web AS SELECT text FROM clicks"
STREAM = """from penstock.streams import Stateless, Input, Stream, Topic, TopicOutput
ORDERS = Topic("orders", compacted=True)
OUTPUT = TopicOutput(Topic("copied"), value="v")
STREAM = Stream("copy", "shop", {"rows": Input(ORDERS)}, lambda rows: rows, OUTPUT, Stateless())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a stream over `orders`, and two sinks, one of them over a topic that nothing declares."""
    for folder in ("jobs/shop", "sql/sinks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "jobs" / "shop" / "copy_of.py").write_text(STREAM)
    (tmp_path / "sql" / "sinks" / "orders-now.sql").write_text(ORDERS)
    (tmp_path / "sql" / "sinks" / "clicks.sql").write_text(FOREIGN)
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", "mongodb://127.0.0.1:1")
    with other_project(tmp_path, {}):
        yield tmp_path


def test_a_sink_is_a_stream_of_its_app(project: Path) -> None:
    found = load(project)
    assert [one.name for one in found.app("sinks")] == ["orders-now"]
    assert [one.name for one in found.app("web")] == ["clicks"]
    sink = found.streams["orders-now"]
    assert (sink.kind, sink.location) == ("sink", f"{project}/sql/sinks/orders-now.sql:1:1")
    assert (sink.every, sink.max_records) == (1.0, 50_000)
    assert found.readers("orders") == ["copy", "orders-now"]
    assert load_partial(project) == (found, [])


def test_a_topic_that_only_a_sink_reads_is_left_to_others(project: Path) -> None:
    found = load(project)
    assert "clicks" not in found.topics
    assert found.topics["orders"].compacted
    assert {"orders-dead-letter", "orders-now-dead-letter", "clicks-dead-letter"} <= found.topics.keys()
    assert found.streams["copy"].create_hint == "create them with `penstock topics --apply`"
    assert found.streams["clicks"].create_hint.endswith("any other, let its own writer create")


def test_a_sink_whose_store_is_not_given_does_not_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_MONGODB_URL")
    settings.cache_clear()
    load.cache_clear()
    found = load(project)
    assert found.disabled.keys() == found.sinks.keys() == {"orders-now", "clicks"}
    assert found.apps.keys() == {"shop"}
    listed = {row.name: row.runs for row in catalog_rows(found)}
    assert listed == {"copy": True, "orders-now": False, "clicks": False}


def test_which_sinks_can_be_replaced(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_INFLUXDB_URL", "http://h:1")
    settings.cache_clear()
    shop = "READ clicks{share} AS JSON (n BIGINT, at TIMESTAMP) APP shop {more} AS SELECT n, at FROM clicks"
    for name, text in {
        "now": "INSERT INTO mongodb.shop.now " + shop.format(share="", more=""),
        "by-day": "INSERT INTO mongodb.shop.days " + shop.format(share="", more="SUFFIX DAY (at)"),
        "points": "UPSERT INTO influxdb.shop.clicks " + shop.format(share="", more="TOMBSTONES IGNORE"),
        "one": "INSERT INTO mongodb.shop.both " + shop.format(share=" SHARE 1 OF 2", more=""),
        "two": "INSERT INTO mongodb.shop.both " + shop.format(share=" SHARE 2 OF 2", more=""),
    }.items():
        (project / "sql" / "sinks" / f"{name}.sql").write_text(text)
    found = app_summary("shop")
    assert found["wrong"] == []
    assert set(found["replaceable"]) == {"copy", "now"}
    assert found["irreplaceable"] == {
        "by-day": "mongodb:shop.days has an index or collection for each day, which are not exchanged at once",
        "points": "influxdb:shop.clicks is a measurement: InfluxDB has neither aliases nor a way to rename one",
        "one": "mongodb:shop.both is written by two, too",
        "two": "mongodb:shop.both is written by one, too",
    }


def test_a_tombstone_of_a_compacted_topic_must_say_its_key(project: Path) -> None:
    place = project / "sql" / "sinks" / "orders-now.sql"
    place.write_text(ORDERS.replace("TOMBSTONES DELETE (record.key)", ""))
    with pytest.raises(DeclarationError) as e:
        load(project)
    assert str(e.value).startswith(f"{place}:1:65: a tombstone of topic orders has no id; got: TOMBSTONES DELETE")
    assert "TOMBSTONES DELETE (an expression over record.key for each), or TOMBSTONES IGNORE" in e.value.hint


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("copy", FOREIGN.replace("clicks", "taps"), "this sink and the stream of .* have one name"),
        ("again", ORDERS, "sink orders-now and sink again of .* write to one place"),
        ("Not_A_Name", FOREIGN.replace("clicks", "taps"), "the name of stream 'Not_A_Name' is not usable"),
        ("later", FOREIGN.replace("INSERT INTO", "INSERT"), "expected INTO"),
    ],
)
def test_a_mistake_in_one_sink_leaves_the_others(project: Path, name: str, text: str, what: str) -> None:
    (project / "sql" / "sinks" / f"{name}.sql").write_text(text)
    with pytest.raises(DeclarationError, match=what):
        load(project)
    found, [wrong] = load_partial(project)
    assert wrong.path.stem == name or "one place" in what
    assert "copy" in found.streams
    assert len(found.sinks) == 2
    assert app_summary("shop")["others"]


@pytest.mark.parametrize(
    ("kind", "content", "what"),
    [
        ("sinks", b"UPSERT INTO \xff", "is not UTF-8; got: byte 13"),
        ("captures", b"\xfe\xff\x00C", "is not UTF-8; got: byte 1"),
        ("sinks", None, "cannot be read; got: No such file"),
        ("captures", None, "cannot be read; got: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_leaves_the_others(
    project: Path, kind: str, content: bytes | None, what: str
) -> None:
    place = project / "sql" / kind / "odd.sql"
    place.parent.mkdir(exist_ok=True)
    if content is None:
        place.symlink_to(project / "gone.sql")
    else:
        place.write_bytes(content)
    found, [wrong] = load_partial(project)
    assert (wrong.path, what in str(wrong)) == (place, True), wrong
    assert found.streams.keys() == {"copy", "orders-now", "clicks"}


def test_the_store_receives_the_clauses_of_the_statement() -> None:
    text = """UPSERT INTO elasticsearch.tests READ tests AS JSON (id BIGINT) SUFFIX DAY (at) EXPIRE AFTER 2 DAYS
    TOMBSTONES IGNORE PARALLEL 3 FIELDS (id LONG) BATCH 10 EVERY 500 MILLISECONDS AS SELECT id, at FROM tests"""
    made = sink_stream(parse(text, Path("tests.sql")))
    assert (made.every, made.max_records) == (0.5, 10)
    (read,) = made.sources.values()
    assert (read.event_time, read.max_ahead, read.record, read.tombstones) == ("record.timestamp", None, True, "keep")
    output = made.outputs[""]
    assert isinstance(output, DocumentOutput)
    told = (
        output.name,
        output.suffix,
        output.expire_seconds,
        output.tombstones,
        output.parallel,
        output.dead_letter_topic.name,
    )
    assert told == ("elasticsearch:tests", "day", 172800, "ignore", 3, "tests-dead-letter")
    assert vars(output)["fields"] == (("id", "long"),)


def test_what_a_store_refuses_is_said_with_its_place() -> None:
    text = "\nUPSERT INTO elasticsearch.`A` READ tests AS TEXT AS SELECT text FROM tests"
    with pytest.raises(DeclarationError, match=r"^tests.sql:2:1: the name of an index has 'A' in it"):
        sink_stream(parse(text, Path("tests.sql")))


SHARED = """INSERT INTO mongodb.shop.clicks READ clicks SHARE {share} AS TEXT APP {app} AS SELECT text FROM clicks"""


def share(project: Path, **shares: str) -> None:
    """Sinks of one place, each in an app of its own, by name."""
    (project / "sql" / "sinks" / "clicks.sql").unlink(missing_ok=True)
    for name, text in shares.items():
        (project / "sql" / "sinks" / f"{name}.sql").write_text(SHARED.format(share=text, app=name))


def test_sinks_in_several_apps_share_a_topic(project: Path) -> None:
    share(project, one="1 OF 2", two="2 OF 2")
    found = load(project)
    shares = {name: [i.share for i in found.streams[name].sources.values()] for name in ("one", "two")}
    assert shares == {"one": [(1, 2)], "two": [(2, 2)]}
    assert load_partial(project, first="two") == (found, [])


@pytest.mark.parametrize("two", ["", "1 OF 2", "2 OF 3"])
def test_shares_that_leave_out_part_of_a_topic_are_refused(project: Path, two: str) -> None:
    share(project, one="1 OF 2", **({"two": two} if two else {}))
    with pytest.raises(DeclarationError, match=r"not all of topic clicks goes to mongodb\.shop\.clicks") as e:
        load(project)
    assert str(e.value).startswith(f"{project}/sql/sinks/one.sql:1:45: ")
    assert "1 OF 2 (one)" in str(e.value)
    found, wrong = load_partial(project)
    # What is there runs: half of a topic is more than nothing.
    assert {"one", "orders-now"} <= found.streams.keys()
    assert [str(one) for one in wrong] == [str(e.value)]


def test_a_whole_topic_and_a_share_of_it_do_not_go_to_one_place(project: Path) -> None:
    (project / "sql" / "sinks" / "whole.sql").write_text(FOREIGN)
    share(project, one="1 OF 2", two="2 OF 2")
    with pytest.raises(DeclarationError, match="write to one place"):
        load(project)


def test_a_stream_that_does_not_run_is_declared_only(project: Path) -> None:
    (project / "jobs" / "shop" / "copy_of.py").write_text(STREAM.replace("Stateless())", "Stateless(), enabled=False)"))
    load.cache_clear()
    found = load(project)
    assert (set(found.apps), set(found.disabled)) == ({"sinks", "web"}, {"copy"})
    assert {row.name: row.runs for row in catalog_rows(found)} == {"copy": False, "orders-now": True, "clicks": True}
    assert "copied" in found.topics
