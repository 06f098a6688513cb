"""The Elasticsearch writer against a real server: versions, deletes, invalid documents, a busy or absent server."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from penstock.errors import Refused, SinkError, Wait
from penstock.sinks.core.bulk import SinkBatchResult
from penstock.sinks.elasticsearch import bulk as elasticsearch_bulk
from penstock.sinks.elasticsearch.bulk import ElasticsearchBulk, IndexAction
from penstock.sinks.elasticsearch.client import connect
from penstock.sinks.elasticsearch.config import LIMITS
from penstock.sinks.elasticsearch.writer import IndexWriter
from tests.support.elasticsearch import MARK, NOON, SHAPE, Opened, Server, give, row, shaped
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration


def test_an_older_version_changes_nothing_and_an_equal_one_is_written_again(opened: Opened, search: Server) -> None:
    writer = opened()
    assert give(writer, row("a", 5, {"name": "new", "n": 2**62 + 1}), row("b", 1, {"name": "b"})) == 2
    assert give(writer, row("a", 4, {"name": "old"}), row("b", 1, {"name": "b"})) == 1
    assert search.documents("things") == {"a": {"name": "new", "n": 2**62 + 1}, "b": {"name": "b"}}
    # Of one batch the newest, and of equals the last.
    assert give(writer, row("a", 9, {"n": 9}), row("a", 7, {"n": 7}), row("b", 2, {"n": 1}), row("b", 2, {"n": 2})) == 2
    assert search.documents("things") == {"a": {"n": 9}, "b": {"n": 2}}
    assert (writer.counters.written, writer.counters.conflicts, writer.counters.refused) == (5, 1, 0)


def test_what_was_deleted_stays_so_however_late_an_older_record_comes(opened: Opened, search: Server) -> None:
    """Elasticsearch by itself forgets a delete after a minute, or with a restart."""
    writer = opened()
    give(writer, row("a", 5, {"n": 5}), row("b", 5, {"n": 5}))
    search.call("PUT", "things/_settings", {"index.gc_deletes": "0s"})
    give(writer, row("a", 6))
    give(writer, row("b", 4))
    assert search.documents("things") == {"b": {"n": 5}}
    give(writer, row("a", 5, {"n": 5}))
    assert search.documents("things") == {"b": {"n": 5}}
    assert give(opened(), row("a", 4, {"n": 4})) == 0, "a writer that is opened anew"
    assert give(writer, row("a", 7, {"n": 7})) == 1
    assert search.documents("things") == {"a": {"n": 7}, "b": {"n": 5}}


def test_any_order_with_batches_given_twice_ends_in_the_newest_state(opened: Opened, search: Server) -> None:
    chance = random.Random(15)
    writers = [opened(), opened(parallel=1)]
    rows = [
        row(f"id-{chance.randrange(25)}", version, None if chance.random() < 0.3 else {"n": version})
        for version in range(400)
    ]
    expected: dict[str, Any] = {}
    for one in rows:
        key = one["id"].decode()
        expected.pop(key, None)
        if not one["deleted"]:
            expected[key] = {"n": one["version"]}
    give(writers[0], rows[0])
    search.call("PUT", "things/_settings", {"index.gc_deletes": "0s"})
    chance.shuffle(rows)
    batches = [rows[start : start + 20] for start in range(0, len(rows), 20)]
    for part in batches + chance.sample(batches, 8):
        give(chance.choice(writers), *part)
    assert search.documents("things") == expected


def test_hostile_rows_are_refused_each_with_its_reason_and_all_others_are_written(
    opened: Opened, search: Server
) -> None:
    shape = shaped({"n": pa.int64(), "x": pa.float64(), "day": pa.timestamp("us", "UTC"), "any": MAP, "s": pa.string()})
    deep: Any = 1
    for _ in range(40):
        deep = {"k": deep}
    rows = {
        "good": row("good", 1, {"n": 1, "x": 1.5}),
        "id of 513 bytes": row("x" * 513, 1, {"n": 1}),
        "id no UTF-8": row(b"\xff\xfe", 1, {"n": 1}),
        "id NULL": row(None, 1, {"n": 1}),
        "id empty": row("", 1, {"n": 1}),
        "version negative": row("negative", -1, {"n": 1}),
        "version NULL": row("unversioned", None, {"n": 1}),
        "NaN": row("nan", 1, b'{"x": "NaN"}'),
        "infinity": row("infinity", 1, b'{"x": "Infinity"}'),
        "too wide": row("wide", 1, b'{"n": 9223372036854775808}'),
        "date": row("date", 1, {"day": "+292278995-01-01T00:00:00Z"}),
        "no date": row("nodate", 1, {"day": "yesterday"}),
        "deep": row("deep", 1, {"any": deep}),
        "very deep": row("verydeep", 1, b'{"any":' + b'{"k":' * 5000 + b"1" + b"}" * 5001),
        "no JSON": row("cut", 1, b'{"n": 1'),
        "larger than the server takes": row("large", 1, {"s": "x" * 9_000_000}),
        "larger than documents are": row("larger", 1, {"s": "x" * (LIMITS.document_bytes + 1)}),
        "100 MB": row("largest", 1, {"s": "x" * 100_000_000}),
        "the transform's own": row("own", 1, {"n": 1}, refused=b"no such account"),
        "no document": row("none", 1, None, deleted=False),
        "id of 512 bytes": row("é" * 256, 1, {"n": 2}),
        "last": row("last", 1, {"n": 3, "s": "y" * 1_000_000}),
    }
    writer = opened()
    with pytest.raises(Refused) as e:
        give(writer, *rows.values(), shape=shape)
    [refused] = e.value.rows.values()
    names = list(rows)
    good = {"good", "id of 512 bytes", "last"}
    assert {names[number] for number in refused} == rows.keys() - good
    said = {names[number]: why for number, why in refused.items()}
    for name, part in {
        "id of 513 bytes": "513 bytes",
        "NaN": "finite",
        "too wide": "out of range",
        "date": "failed to parse",
        "deep": "depth",
        "larger than the server takes": "too large|content_too_long|Request Entity",
        "100 MB": "100000008 bytes",
        "the transform's own": "no such account",
    }.items():
        assert any(word.lower() in said[name].lower() for word in part.split("|")), f"{name}: {said[name]}"
    assert search.documents("things").keys() == {"good", "é" * 256, "last"}
    assert (writer.counters.refused, e.value.written) == (len(rows) - 3, 3)


MAP = pa.map_(pa.string(), pa.string())


def test_names_with_dots_and_dollars_and_ten_thousand_of_them_are_kept_and_found(
    opened: Opened, search: Server
) -> None:
    writer = opened()
    many = {f"field.{n}.$x": str(n) for n in range(10_000)} | {"long": "x" * 40_000}
    give(writer, row("many", 1, {"any": many}), row("few", 1, {"any": {"a.b": "1"}}), shape=shaped({"any": MAP}))
    assert search.documents("things") == {"many": {"any": many}, "few": {"any": {"a.b": "1"}}}
    found = search.call("POST", "things/_search", {"query": {"term": {"any.field.4711.$x": "4711"}}})
    assert [hit["_id"] for hit in found["hits"]["hits"]] == ["many"]
    assert search.call("GET", "things/_mapping")["things"]["mappings"]["properties"].keys() == {"any"}


def test_columns_with_dots_and_dollars_are_fields_and_too_many_are_refused_with_the_reason(
    opened: Opened, search: Server
) -> None:
    shape = shaped({"a.b": pa.int64(), "$set": pa.string(), "a": shaped({"c": pa.int64()})})
    doc = {"a.b": 1, "$set": "s", "a": {"c": 2}}
    give(opened("dots"), row("x", 1, doc), shape=shape)
    assert search.documents("dots") == {"x": doc}
    found = search.call(
        "POST", "dots/_search", {"query": {"bool": {"filter": [{"term": {"a.b": 1}}, {"term": {"a.c": 2}}]}}}
    )
    assert found["hits"]["total"]["value"] == 1
    with pytest.raises(SinkError, match=r"total fields \[1000\]"):
        give(opened("wide"), row("x", 1, {}), shape=shaped({f"f{n}": pa.int64() for n in range(1001)}))


def taken(writer: IndexWriter, rows: list[dict[str, Any]]) -> int:
    """How many rows of a batch are written; 0 if the server asks to wait."""
    try:
        return give(writer, *rows)
    except Wait:
        return 0


def test_spark_gives_what_is_written(opened: Opened, search: Server, spark: SparkSession) -> None:
    """Times to the microsecond, all digits of numbers, bytes, and text that is none."""
    made = spark.sql(
        """
        SELECT struct(* EXCEPT (id)) AS doc, id FROM (
            SELECT 1 AS n, 12345678901234567890.12BD AS big, timestamp_micros(1234567890123456) AS at,
                DATE'2026-11-22' AS day, x'00ff' AS raw, array(struct('x' AS k)) AS list, map('a.b', 1.5D) AS any,
                CAST(NULL AS STRING) AS nothing, parse_json('{"free": [1, "x"]}') AS free, 'good' AS id
            UNION ALL
            SELECT 2, 0BD, NULL, NULL, NULL, NULL, map('k', CAST('NaN' AS DOUBLE)), CAST(x'41ff42' AS STRING), NULL,
                'odd')
        """
    ).select(
        "doc",
        "id",
        f.lit(1).alias("version"),
        f.lit(None).cast("boolean").alias("deleted"),
        f.current_timestamp().alias("at"),
        f.lit(None).cast("string").alias("refused"),
        f.struct(f.lit("t").alias("topic"), f.lit(0).alias("partition"), f.lit(7).alias("offset")).alias("record"),
    )
    writer = opened(fields=(("n", "short"), ("list", "nested"), ("list.k", "keyword")))
    table = made.select(writer.output.columns()).toArrow()
    assert writer.write({writer.output.name: table}, MARK) == 2
    assert search.documents("things") == {
        "good": {
            "n": 1,
            "big": 12345678901234567890.12,
            "at": "2009-02-13T23:31:30.123456Z",
            "day": "2026-11-22",
            "raw": "AP8=",
            "list": [{"k": "x"}],
            "any": {"a.b": 1.5},
            "nothing": None,
            "free": {"free": [1, "x"]},
        },
        "odd": {
            **dict.fromkeys(("at", "day", "raw", "list", "free")),
            "n": 2,
            "big": 0,
            "any": {"k": "NaN"},
            "nothing": "A\ufffdB",
        },
    }
    fields = search.call("GET", "things/_mapping")["things"]["mappings"]["properties"]
    kinds = {name: told.get("type") for name, told in fields.items()}
    assert kinds == {
        "n": "short",
        "big": "double",
        "at": "date",
        "day": "date",
        "raw": "binary",
        "list": "nested",
        "any": "flattened",
        "nothing": "text",
        "free": "object",
    }


def test_a_request_that_is_refused_as_a_whole_costs_only_the_item_to_blame(opened: Opened, search: Server) -> None:
    give(opened(), row("first", 1, {"n": 0}))
    client = connect(search.url)
    bulk = ElasticsearchBulk(client, 1, lambda _: None)
    items = [IndexAction(n, "things", "x" * 600 if n == 4 else str(n), 1, b'{"n": 1}') for n in range(9)]
    made = SinkBatchResult()
    assert bulk.write(items, made).written == 8
    assert made.refused.keys() == {4}
    assert "Validation Failed" in made.refused[4]
    bulk.close()
    client.close()


def test_items_that_the_server_has_no_room_for_are_written_again_and_no_others(
    opened: Opened, search: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elasticsearch_bulk, "LIMITS", replace(LIMITS, rows=20))
    writer = opened(parallel=5)
    rows = [row(str(n), 1, {"n": n, "name": "x" * 5000}) for n in range(500)]
    for _ in range(20):
        with suppress(Wait):
            give(writer, *rows)
        if writer.counters.retried:
            break
    assert writer.counters.retried > 0, "the queue of two never was full"
    assert wait_until(lambda: taken(writer, rows)) == 500
    assert writer.counters.conflicts == 0
    assert len(search.documents("things")) == 500


def test_a_server_that_stays_busy_is_waited_for(
    opened: Opened, search: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its disk is full: Elasticsearch answers 429 to each item then."""
    monkeypatch.setattr(elasticsearch_bulk, "PAUSE_S", 0.001)
    writer = opened()
    give(writer, row("a", 1, {"n": 1}))
    search.call("PUT", "things/_settings", {"index.blocks.read_only_allow_delete": True})
    waits = []
    for _ in range(3):
        with pytest.raises(Wait, match=r"TOO_MANY_REQUESTS") as e:
            give(writer, row("b", 1, {"n": 1}))
        waits.append(e.value.seconds)
    assert waits == [1, 2, 4]
    search.call("PUT", "things/_settings", {"index.blocks.read_only_allow_delete": None})
    assert give(writer, row("b", 1, {"n": 1})) == 1
    search.call("PUT", "things/_settings", {"index.blocks.write": True})
    with pytest.raises(SinkError, match="index write"):
        give(writer, row("c", 1, {"n": 1}))


def test_a_server_that_is_killed_is_waited_for_and_forgets_nothing(opened: Opened, search: Server) -> None:
    if search.part is None:
        pytest.skip("the server is somebody else's")
    writer = opened()
    rows = [row(str(n), 10, {"n": n}) for n in range(500)]
    give(writer, *rows)
    give(writer, row("1", 20), row("2", 20))
    search.part.kill()
    with pytest.raises(Wait, match="does not answer"):
        give(writer, row("3", 20), row("new", 1, {"n": 1}))
    search.part.start()
    search.part.wait()
    assert give(writer, row("3", 20), row("new", 1, {"n": 1})) == 2
    # A delete of before the crash, and one of after it.
    assert give(writer, row("1", 15, {"n": 1}), row("2", 19, {"n": 1}), row("3", 19, {"n": 1})) == 0
    expected = {str(n): {"n": n} for n in range(500) if n not in (1, 2, 3)} | {"new": {"n": 1}}
    assert search.documents("things") == expected


def test_an_index_is_made_as_declared_and_never_changed_in_silence(opened: Opened, search: Server) -> None:
    give(opened(fields=(("name", "keyword"),)), row("a", 1, {"name": "x"}))
    # Another column is added to it.
    more = pa.struct([*SHAPE, pa.field("extra", pa.bool_())])
    give(opened(fields=(("name", "keyword"),)), row("b", 1, {"extra": True}), shape=more)
    index = search.call("GET", "things/_mapping")["things"]["mappings"]
    assert index["dynamic"] == "false"
    assert {name: told["type"] for name, told in index["properties"].items()} == {
        "name": "keyword",
        "n": "long",
        "extra": "boolean",
    }
    # Another type is another index.
    with pytest.raises(SinkError, match="name has type keyword, declared is text") as e:
        give(opened(), row("c", 1, {"name": "x"}))
    assert "FIELDS" in str(e.value)
    with pytest.raises(SinkError, match="DELETE _index_template/penstock-things"):
        give(opened(suffix="day", fields=(("name", "keyword"),)), row("d", 1, {"name": "x"}), shape=more)
    assert search.documents("things").keys() == {"a", "b"}


def test_an_index_is_as_declared_however_elasticsearch_says_it(opened: Opened, search: Server) -> None:
    """It leaves out what is the default, gives 1.0 for 1, and a list for its only value."""
    name = '{"type": "keyword", "index": true, "doc_values": true, "copy_to": "all", "ignore_above": 256}'
    declared = {"fields": (("name", name), ("x", '{"type": "double", "null_value": 1, "coerce": true}'))}
    shape = pa.struct([*SHAPE, pa.field("x", pa.float64()), pa.field("all", pa.string())])
    give(opened(**declared), row("a", 1, {"name": "x"}), shape=shape)
    second = opened(**declared)
    give(second, row("b", 1, {"name": "x"}), shape=shape)
    with pytest.raises(Refused, match="failed to parse field"):
        give(second, row("c", 1, {"n": "no number"}), shape=shape)
    # As a replacement leaves the template.
    present = search.call("GET", "things/_mapping")["things"]["mappings"]
    assert (present["properties"]["x"]["null_value"], "index" in present["properties"]["name"]) == (1.0, False)
    template = {"index_patterns": ["things"], "priority": 150, "template": {"mappings": present}}
    assert search.call("PUT", "_index_template/penstock-things", template) == {"acknowledged": True}
    give(opened(**declared), row("d", 1, {"name": "x"}), shape=shape)
    with pytest.raises(SinkError, match="name has index True, declared is False"):
        give(opened(fields=(("name", name.replace('"index": true', '"index": false')),)), row("e", 1, {}), shape=shape)
    assert search.documents("things").keys() == {"a", "b", "d"}


def test_an_index_that_somebody_deletes_is_made_again_as_declared(opened: Opened, search: Server) -> None:
    writer = opened()
    give(writer, row("a", 1, {"n": 1}))
    search.call("DELETE", "things")
    search.call("DELETE", "things-tombstones")
    give(writer, row("b", 1, {"n": 1}), row("c", 1))
    index = search.call("GET", "things/_mapping")["things"]["mappings"]
    assert index["properties"]["n"] == {"type": "long"}
    assert index["dynamic"] == "false"
    assert give(writer, row("c", 0, {"n": 1})) == 0


def test_a_document_lies_in_the_index_of_its_time_and_is_deleted_there(opened: Opened, search: Server) -> None:
    writer = opened(suffix="day")
    day = timedelta(days=1)
    give(writer, row("a", 1, {"n": 1}), row("b", 1, {"n": 2}, at=NOON - day), row("c", 1, {"n": 3}, at=NOON - day))
    assert search.documents("things-2026.11.22").keys() == {"a"}
    assert search.documents("things-2026.11.21").keys() == {"b", "c"}
    # A tombstone has a time of its own, or none.
    give(writer, row("b", 2, at=NOON), row("c", 2, at=None), row("a", 0, at=None), row("unknown", 2))
    assert search.documents("things").keys() == {"a"}, "all of them by one name"
    assert give(writer, row("b", 1, {"n": 2}, at=NOON - day)) == 0
    with pytest.raises(Refused) as e:
        give(writer, row("d", 1, {"n": 1}, at=None), row("e", 1, {"n": 1}, at=datetime(2200, 1, 1, tzinfo=UTC)))
    assert list(e.value.rows[writer.output.name].values()) == [
        "its time is NULL",
        "its time is outside of 1970 to 2199",
    ]


def test_a_document_is_deleted_behind_an_alias_of_the_name_of_its_index(opened: Opened, search: Server) -> None:
    """As when the documents of a day were reindexed into an index that then takes its name."""
    writer = opened(suffix="day")
    give(writer, row("a", 1, {"n": 1}), row("b", 1, {"n": 1}))
    search.call("DELETE", "things-2026.11.22")
    search.call("PUT", "things-v2", {"aliases": {"things": {}, "things-2026.11.22": {}}})
    give(writer, row("a", 1, {"n": 1}), row("b", 1, {"n": 1}))
    give(writer, row("a", 2, at=None))
    assert search.documents("things-v2").keys() == search.documents("things-2026.11.22").keys() == {"b"}


def test_a_mark_keeps_the_document_and_says_that_it_is_deleted(opened: Opened, search: Server) -> None:
    writer = opened(tombstones="mark")
    shape = pa.struct([*SHAPE, pa.field("deleted", pa.bool_())])
    give(writer, row("a", 1, {"n": 1, "deleted": False}), row("b", 1, {"n": 1, "deleted": False}), shape=shape)
    give(writer, row("a", 2, None), row("b", 2, {"n": 2, "deleted": True}, deleted=True), shape=shape)
    assert give(writer, row("a", 1, {"n": 1, "deleted": False}), shape=shape) == 0
    assert search.documents("things") == {"a": {"deleted": True}, "b": {"n": 2, "deleted": True}}
    ignoring = opened("others", tombstones="ignore")
    give(ignoring, row("a", 1, {"n": 1}))
    assert give(ignoring, row("a", 2)) == 0
    assert search.documents("others") == {"a": {"n": 1}}
