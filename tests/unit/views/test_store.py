"""The store of a view: what it holds, what is found in it, and what it does not take for its own."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pydantic import ValidationError

from penstock.errors import DeclarationError, Wait
from penstock.model.view import View
from penstock.streams import Table, Topic
from penstock.tables.topic_reader import TableDecoder
from penstock.tables.topic_reader import table_schema as rows_layout
from penstock.views.api import query as view_query
from penstock.views.api.query import BadQuery, Counts, Search
from penstock.views.api.query_pool import QueryPool
from penstock.views.store.columns import ViewLayout
from penstock.views.store.sqlite import QueryTimeout, StoreDamaged, ViewStore
from tests.support.view_stores import BY, SCHEMA, VIEW, found, kept

MAPS: list[dict[str, str]] = [
    {}, {"a": "b"}, {"a": "b", "c": "d"}, {"aa": "b"}, {"a": "bb"}, {"a\x1fb": ""}, {"a": "b\x1ec\x1fd"},
    {"\x1c1": "b"},    {"\x1e": "b"}, {"a": ""}, {"": "b"}, {'"': "\\"}, {"é": "😀"}, {"a\0": "b"}, {"%": "_"},
]  # fmt: skip


def rows(*given: dict[str, Any]) -> pa.Table:
    full = [{"_deleted": False, **one} for one in given]
    return pa.Table.from_pylist(full, schema=rows_layout(VIEW.fields))


@pytest.fixture
def store(tmp_path: Path) -> ViewStore:
    made = ViewStore(ViewLayout(VIEW), tmp_path / "views" / "shops.db")
    made.begin("id", 2, 5, {0: 0, 1: 0})
    return made


def parsed(store: ViewStore, *parameters: tuple[str, str]) -> dict[str, Any]:
    return view_query.from_query_string(store.layout, parameters)


def test_the_newest_rows_are_kept_with_the_offsets_behind_them(store: ViewStore) -> None:
    store.apply({0: rows({"key": "a", "town": "Aachen", "x": {"y": 1}}, {"key": "b", "n": 2})}, {0: 2})
    store.apply(
        {0: rows({"key": "a", "town": "Ahlen"}, {"key": "b", "_deleted": True}, {"key": "c", "_deleted": True})}, {0: 5}
    )
    store.reached(6)
    store.close()
    again = ViewStore(ViewLayout(VIEW), store.path)
    again.open()
    assert (again.next, again.meta.topic, again.meta.at, again.meta.loaded) == ({0: 5, 1: 0}, "id", 6, True)
    assert again.read("SELECT key, partition, by_0 FROM rows") == [("a", 0, "Ahlen")]
    ((text,),) = again.read("SELECT value FROM rows")
    assert text == '{"town":"Ahlen","n":null,"open":null,"at":null,"day":null,"tags":null,"x":null}'
    again.without([0])
    assert (again.next, again.read("SELECT * FROM rows")) == ({1: 0}, [])


def test_entries_of_maps_are_found_and_no_others(store: ViewStore) -> None:
    store.apply({0: rows(*({"key": f"{n:02d}", "tags": list(tags.items())} for n, tags in enumerate(MAPS)))}, {0: 1})
    store.reached(1)
    for name, value in {(name, value) for tags in MAPS for name, value in tags.items()} | {("a", "x"), ("b", "a")}:
        wanted = [f"{n:02d}" for n, tags in enumerate(MAPS) if tags.get(name) == value]
        assert found(store, {f"tags.{name}": value}) == wanted, (name, value)


def test_an_entry_may_have_one_of_a_thousand_values(store: ViewStore) -> None:
    store.apply({0: rows({"key": "a", "tags": [("site", "s999")]}, {"key": "b", "tags": [("site", "s1000")]})}, {0: 2})
    store.reached(1)
    assert found(store, {"tags.site": [f"s{n}" for n in range(1000)]}) == ["a"]


def test_numbers_that_json_does_not_have_are_texts_as_they_were(tmp_path: Path) -> None:
    view = View("v", VIEW.topic, "a DOUBLE, b FLOAT, m MAP<STRING,DOUBLE>, s STRING", query_by="a")
    said = [
        {"a": "NaN", "b": 1.5, "m": {"NaN": "-Infinity", "x": 1}, "s": 'of "NaN", -Infinity: \\"'},
        {"a": "Infinity", "b": "-Infinity", "m": None, "s": None},
        {"a": 2.0, "b": 0.5, "m": {}, "s": "Infinity"},
    ]
    records: list[tuple[bytes | None, bytes | None, int, int]] = []
    records += [(str(n).encode(), json.dumps(one).encode(), 0, n) for n, one in enumerate(said)]
    taken = TableDecoder(Table(Topic("shops", compacted=True), schema=view.schema)).decode(records, {0: 3})
    assert len(taken.bad_records) == 0
    made = ViewStore(ViewLayout(view), tmp_path / "v.db")
    made.begin("id", 1, 5, {0: 0})
    made.apply(taken.rows, {0: 3})
    made.reached(6)
    values = [text for _, text in made.read("SELECT key, value FROM rows ORDER BY key")]
    assert [orjson.loads(text) for text in values] == said
    assert found(made, {}, order="a") == ["2"]
    assert found(made, {"a": None}) == ["0", "1"]


def test_values_of_each_type_are_compared(store: ViewStore) -> None:
    from datetime import UTC, date, datetime

    at = datetime(2026, 1, 31, 23, 30, 0, 123_999, tzinfo=UTC)
    one = {"key": "k", "town": "Ulm", "n": -3, "open": True, "at": at, "day": date(2026, 2, 1), "tags": None}
    store.apply({0: rows(one, {"key": "none"})}, {0: 1})
    store.reached(1)
    now = "2026-01-31T23:30:00.123999Z"
    for where in (
        {"n": -3}, {"n": {"lt": 0}}, {"open": True}, {"at": now}, {"at": "2026-02-01T00:30:00.123999+01:00"},
        {"at": {"gt": "2026-01-31T23:30:00.123998", "le": now}}, {"day": "2026-02-01"}, {"day": {"ge": "2026-01-31"}},
        {"town": ["Ulm", "Bonn"], "n": {"in": [-3, 5]}}, parsed(store, ("n", "-3"), ("open", "true")),
        parsed(store, ("town", "Bonn"), ("town", "Ulm"), ("at.ge", now), ("day", "2026-02-01")),
    ):  # fmt: skip
        assert found(store, where) == ["k"], where
    assert found(store, {"n": None}) == ["none"]
    assert found(store, {"n": [None, -3]}) == ["k", "none"]
    for where in ({"open": False}, {"n": {"gt": 0}}, {"at": {"lt": now}}, {"tags.a": "b"}):
        assert found(store, where) == []
    for where in (
        {"n": 1.5}, {"n": True}, {"open": 1}, {"day": "soon"}, {"at": "soon"}, {"x": 1}, {"town.x": 1},
        {"at": 1769902200123}, {"n": 1 << 63}, {"n": 10**5000}, {"at": "1" * 9}, {"at": "9999-12-31T24:00Z"},
    ):  # fmt: skip
        with pytest.raises(BadQuery):
            found(store, where)


def test_a_float_is_queried_and_returned_as_it_was_written(tmp_path: Path) -> None:
    store = kept(tmp_path, "f FLOAT, l ARRAY<FLOAT>", ("f",), *({"f": f, "l": [f]} for f in (0.1, 16777216, -3.4e38)))
    for f, key in ((0.1, "0"), (0.10000000149011612, "0"), (16777216, "1"), (-3.4e38, "2")):
        assert found(store, {"f": f}) == [key]
    assert found(store, {"f": {"le": 0.1}}, order="f") == ["2", "0"]
    assert (found(store, {"f": {"lt": 0.1}}), found(store, {"f": {"gt": 0.1}})) == (["2"], ["1"])
    assert (found(store, {"f": {"lt": 1e300}}, order="f"), found(store, {"f": 1e300})) == (["2", "0", "1"], [])
    ((text, at),) = store.read("SELECT value, by_0 FROM rows WHERE key = '0'")
    assert (orjson.loads(text), at) == ({"f": 0.1, "l": [0.1]}, 0.1)


def test_a_time_has_one_shape_wherever_it_stands(tmp_path: Path) -> None:
    said, now = "2026-01-31 23:30:00.5+01:00", "2026-01-31T22:30:00.500000Z"
    first, last = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
    schema = "at TIMESTAMP, l ARRAY<TIMESTAMP>, m MAP<STRING,TIMESTAMP>, s STRUCT<t: STRUCT<`a b`: TIMESTAMP>, b: INT>"
    one: dict[str, Any] = {
        "at": said,
        "l": [said, None],
        "m": {"x": said, "y": None},
        "s": {"t": {"a b": said}, "b": 5},
    }
    given: list[dict[str, Any]] = [
        one,
        {"at": first, "l": None, "m": None, "s": None},
        {"at": last, "l": [], "m": {}, "s": {"t": None}},
    ]
    store = kept(tmp_path, schema, ("at",), *given)
    values = [orjson.loads(text) for (text,) in store.read("SELECT value FROM rows ORDER BY key")]
    assert values[0] == {"at": now, "l": [now, None], "m": {"x": now, "y": None}, "s": {"t": {"a b": now}, "b": 5}}
    assert values[1:] == [given[1], {**given[2], "s": {"t": None, "b": None}}]
    column = store.layout.by["at"]
    for key, shown in enumerate((now, first, last)):
        assert found(store, {"at": shown}) == [str(key)]
        ((at,),) = store.read("SELECT by_0 FROM rows WHERE key = ?", (str(key),))
        assert view_query.to_json_value(column, at) == shown
        cursor = view_query.make_cursor(store.layout, Search(order="at"), at, str(key))
        assert orjson.loads(base64.urlsafe_b64decode(cursor))[2] == shown
    first_page = view_query.make_cursor(
        store.layout, Search(order="at"), view_query.to_column_value(column, "at", now), "0"
    )
    assert found(store, {}, order="at", cursor=first_page) == ["2"]


@pytest.mark.parametrize("kind", ["BIGINT", "DOUBLE", "FLOAT", "STRING", "BOOLEAN", "TIMESTAMP", "DATE"])
def test_a_cursor_that_no_page_gave_is_refused_or_is_a_place(tmp_path: Path, kind: str) -> None:
    store = kept(tmp_path, f"x {kind}", ("x",))
    places: list[Any] = [1 << 63, 1 << 64, -(1 << 63) - 1, 10**400, True, None, "", "x", "\0", [], {}, 1e308, "2026"]
    for order, at in itertools.product(("x", "key"), places):
        cursor = base64.urlsafe_b64encode(json.dumps([order, False, at, "k"]).encode()).decode()
        with contextlib.suppress(BadQuery):
            assert found(store, {}, order=order, cursor=cursor) == []


def test_a_step_below_the_least_number_is_one(tmp_path: Path) -> None:
    store = kept(tmp_path, "n BIGINT", ("n",), {"n": -(1 << 63)}, {"n": (1 << 63) - 1})
    asked = Counts(by=["n"], per={"n": 1000})
    query = view_query.counts_sql(store.layout, asked)
    column = store.layout.by["n"]
    shown = sorted(view_query.to_json_value(column, value) for value, _ in store.read(query.sql(), query.parameters))
    assert shown == [-(1 << 63), 9223372036854775000]


def test_counts_of_any_fields_agree_with_the_rows(store: ViewStore) -> None:
    given: list[dict[str, Any]] = [
        {"key": str(n), "town": "ab"[n % 2], "n": n % 3, "open": n % 5 == 0} for n in range(60)
    ]
    store.apply({0: rows(*given)}, {0: 1})
    store.reached(1)
    for by in ([], ["town"], ["n"], ["open", "town"], ["town", "n", "open"]):
        asked = Counts(by=by, where={"n": {"ge": 1}})
        query = view_query.counts_sql(store.layout, asked)
        wanted: dict[tuple[Any, ...], int] = {}
        for row in given:
            if row["n"] >= 1:
                wanted[tuple(row[name] for name in by)] = wanted.get(tuple(row[name] for name in by), 0) + 1
        assert {tuple(values): number for *values, number in store.read(query.sql(), query.parameters)} == wanted


def test_numbers_and_times_are_counted_in_steps(store: ViewStore) -> None:
    given: list[dict[str, Any]] = [{"key": str(n), "n": n - 7, "at": n * 1_000_000 or None} for n in range(20)]
    store.apply({0: rows(*given)}, {0: 1})
    store.reached(1)

    def counts_sql(**asked: Any) -> dict[tuple[Any, ...], int]:
        made = Counts(**asked)
        query = view_query.counts_sql(store.layout, made)
        return {tuple(values): number for *values, number in store.read(query.sql(), query.parameters)}

    assert counts_sql(by=["n"], per={"n": 5}) == {(-10,): 2, (-5,): 5, (0,): 5, (5,): 5, (10,): 3}
    assert counts_sql(by=["at", "n"], per={"at": 10_000, "n": 50}) == {
        (None, -50): 1, (0, -50): 6, (0, 0): 3, (10_000_000, 0): 10,
    }  # fmt: skip
    for wrong in (
        {"per": {"n": 5}}, {"by": ["town"], "per": {"town": 5}}, {"by": ["n"], "per": {"at": 5}},
        {"by": ["day"], "per": {"day": 5}}, {"by": ["n"], "per": {"none": 5}}, {"by": ["open"], "per": {"open": 2}},
    ):  # fmt: skip
        with pytest.raises(BadQuery):
            counts_sql(**wrong)
    for step in (0, -1, 1.5, 1 << 60):
        with pytest.raises(ValidationError):
            Counts(by=["n"], per={"n": step})  # type: ignore[dict-item]


def test_what_is_asked_is_answered_out_of_the_index(store: ViewStore) -> None:
    """Criteria must not look at each row for itself."""
    store.reached(1)
    asked = Search(where={"tags.a": "b", "n": {"ge": 1}}, order="at")
    query = view_query.search_sql(store.layout, asked)
    plan = " ".join(row[3] for row in store.read(f"EXPLAIN QUERY PLAN {query.sql()}", query.parameters))
    assert "USING COVERING INDEX criteria" in plan


def test_a_store_of_something_else_is_refused(store: ViewStore, tmp_path: Path) -> None:
    store.apply({0: rows(*({"key": str(n), "town": "x" * 500} for n in range(500)))}, {0: 500})
    store.close()
    for other in (
        View("v", VIEW.topic, f"{SCHEMA}, z INT", query_by=BY),
        View("v", VIEW.topic, SCHEMA, query_by=("town",)),
    ):
        with pytest.raises(StoreDamaged, match="another schema"):
            ViewStore(ViewLayout(other), store.path).open()
    content = store.path.read_bytes()
    for damaged in (b"", b"nothing" * 5000, content[: len(content) // 2], content[:8192] + bytes(len(content) - 8192)):
        store.path.write_bytes(damaged)
        with pytest.raises(StoreDamaged):
            store.open()
        store.close()
    with pytest.raises(StoreDamaged, match="no store yet"):
        ViewStore(ViewLayout(VIEW), tmp_path / "none").open()


def test_a_failed_write_changes_nothing(store: ViewStore) -> None:
    store.apply({0: rows({"key": "a", "n": 1})}, {0: 1})
    with contextlib.closing(sqlite3.connect(store.path)) as other, other:
        other.execute("DROP TABLE offsets")
    with pytest.raises(StoreDamaged):
        store.apply({0: rows({"key": "a", "n": 2})}, {0: 2}, dead=1)
    assert store.read("SELECT by_1 FROM rows") == [(1,)]
    assert (store.next, store.meta.dead) == ({0: 1, 1: 0}, 0)


def test_a_query_ends_at_its_deadline(store: ViewStore) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(QueryTimeout):
        store.read(endless, deadline=time.monotonic() + 0.05)
    assert store.read("SELECT 1") == [(1,)]


def test_rows_end_behind_so_many_bytes_of_keys_and_values(store: ViewStore) -> None:
    store.apply({0: rows(*({"key": f"{n}" * 2000} for n in range(1, 9)))}, {0: 8})
    found = store.read("SELECT key, value FROM rows ORDER BY key", max_bytes=5000)
    assert (len(found), found.cut) == (3, True)
    assert not store.read("SELECT key, value FROM rows", max_bytes=20_000).cut


def test_a_reader_goes_over_to_a_store_that_is_made_anew(store: ViewStore) -> None:
    store.apply({0: rows({"key": "a", "n": 1})}, {0: 1})
    assert store.read("SELECT count(*) FROM rows") == [(1,)]
    store.begin("other", 2, 6, {0: 0, 1: 0})
    assert store.read("SELECT count(*) FROM rows") == [(0,)]


class ViewsTimeout(QueryPool):
    """Takes its time between reading what is asked and writing it, as threads of a Python without its lock may."""

    @property
    def _asked(self) -> int:
        found = self._number_asked
        time.sleep(0.002)
        return found

    @_asked.setter
    def _asked(self, value: int) -> None:
        self._number_asked = value


def test_a_pool_has_all_its_places_again_when_its_queries_are_done() -> None:
    import asyncio

    pool, deadline = ViewsTimeout(threads=4, waiting=100), time.monotonic() + 60

    async def asked() -> None:
        await asyncio.gather(*(pool.run(lambda: time.sleep(0.001), deadline) for _ in range(40)))

    try:
        asyncio.run(asked())
        while pool.query_count and time.monotonic() < deadline:
            time.sleep(0.01)
            assert pool._working or pool.query_count == 0, "a place is lost"
    finally:
        pool.close()


async def _asked(pool: QueryPool) -> None:
    import asyncio

    hold, soon = threading.Event(), time.monotonic() + 0.2
    first = [asyncio.ensure_future(pool.run(hold.wait, soon)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Wait):
        await pool.run(hold.wait, soon)
    for one in first:
        with pytest.raises(QueryTimeout):
            await one
    deadline = time.monotonic() + 60
    while not pool.stuck and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert pool.stuck, "it was noticed"
    hold.set()
    while pool.query_count and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert [pool.query_count, pool.stuck] == [0, False]
    assert await pool.run(lambda: 5, time.monotonic() + 60) == 5


def test_a_pool_refuses_what_would_wait_long_and_notices_a_stuck_thread() -> None:
    import asyncio

    pool = QueryPool(threads=1, waiting=2, stuck_after=0.1)
    try:
        asyncio.run(_asked(pool))
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("schema", "by", "said"),
    [
        ("a ARRAY<INT>, n INT", "a", "cannot be queried by this field"),
        ("m MAP<STRING,DOUBLE>", "m", "cannot be queried by this field"),
        ("key STRING", (), "a field of the name that its key has"),
        ("n INT", ("n", "n"), "cannot be queried by this field"),
    ],
)
def test_a_view_that_cannot_be_asked_is_refused(schema: str, by: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        View("v", VIEW.topic, schema, query_by=by)
