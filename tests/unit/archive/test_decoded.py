"""Decoded fields of an archive: the table's columns and partitions follow the declaration, and no row is lost by it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from penstock.archive import catalog
from penstock.archive.decoded import evolve
from penstock.archive.stream import ArchiveOutput, archive_stream, output_of
from penstock.errors import DeclarationError, SinkError, Wait
from penstock.model.archive import Archive
from penstock.model.mask import Mask
from penstock.model.topic import Topic
from tests.support.s3_store import Calls, Cut
from tests.support.small_archive import (
    archived_rows,
    batch,
    closer,
    hours,
    is_valid,
    local_store,
    open_writer,
    output,
    table_of,
    write_batch,
)  # fmt: skip

SALE = "id INT NOT NULL, shop STRING"


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    with local_store(tmp_path):
        yield


def decoding(schema: str, *partition_by: str, name: str = "kept") -> ArchiveOutput:
    return replace(output(name), decode=Topic("t", schema=schema), partition_by=partition_by)


def sales(first: int, *values: object) -> pa.Table:
    """Records of one hour: bytes as they are, None a tombstone, all else as JSON."""
    raw = [one if isinstance(one, bytes | None) else json.dumps(one).encode() for one in values]
    rows = batch(*range(first, first + len(raw)))
    return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(raw, pa.binary()))


def iceberg(to: ArchiveOutput) -> Any:
    return catalog.open_catalog().load_table(to.table)


def decoded(to: ArchiveOutput, where: str = "true") -> list[Any]:
    rows = iceberg(to).scan(where).to_arrow().sort_by("offset").to_pylist()
    return [row["decoded"] for row in rows]


def values_of_files(to: ArchiveOutput) -> list[tuple[Any, ...]]:
    return sorted((file.values for file in table_of(to).files()), key=lambda values: (len(values), str(values)))


def test_values_are_decoded_and_those_of_no_record_are_null() -> None:
    to = decoding("id BIGINT NOT NULL, shop STRING, at TIMESTAMP, tags ARRAY<STRING>, of STRUCT<x: INT>")
    sale = {"id": 1, "shop": "a", "tags": ["q"], "of": {"x": 3}}
    write_batch(open_writer(to), to, sales(0, sale, None, b"\xff", {"shop": "b"}, {"id": "x"}, b"[]", {"id": 2}))
    nothing = {"shop": None, "tags": None, "of": None, "at": None}
    assert decoded(to) == [{**sale, "at": None}, None, None, None, None, None, {**nothing, "id": 2}]
    assert len(archived_rows(to)) == 7


def test_fields_are_added_widened_and_left_out() -> None:
    to = decoding(SALE)
    write_batch(open_writer(to), to, sales(0, {"id": 1, "shop": "a"}), 0)
    wider = decoding("id BIGINT NOT NULL, more STRUCT<x: INT>")
    writer = open_writer(wider)
    write_batch(writer, wider, sales(1, {"id": 5_000_000_000, "shop": "b", "more": {"x": 1}}), 1)
    expected: list[Any] = [
        {"id": 1, "shop": "a", "more": None}, {"id": 5_000_000_000, "shop": None, "more": {"x": 1}}
    ]  # fmt: skip
    assert decoded(wider) == expected
    # Files of both schemas are joined, and keep what each has.
    closer(writer, wider, 2).close_due_hours()
    assert len(table_of(wider).files()) == 1
    assert decoded(wider) == expected
    # One that decodes less, or nothing, goes on with the same table.
    write_batch(open_writer(to), to, sales(2, {"id": 3, "shop": "c"}), 2)
    write_batch(open_writer(output()), output(), sales(3, {"id": 4, "shop": "d"}), 3)
    assert decoded(to) == [*expected, {"id": 3, "shop": "c", "more": None}, None]
    assert is_valid(to)


def test_a_field_of_another_type_is_refused_and_nothing_is_lost() -> None:
    to = decoding(SALE)
    write_batch(open_writer(to), to, sales(0, {"id": 1, "shop": "a"}), 0)
    with pytest.raises(SinkError, match=r"cannot have the fields.*decoded.id: int -> string.*another name"):
        open_writer(decoding("id STRING"))
    write_batch(open_writer(to), to, sales(1, {"id": 2, "shop": "b"}), 1)
    assert [row["id"] for row in decoded(to)] == [1, 2]


def test_hours_are_partitioned_by_fields() -> None:
    to = decoding(SALE, "shop")
    writer = open_writer(to)
    some = [{"id": n, "shop": "ab"[n % 2]} for n in range(4)]
    write_batch(writer, to, sales(0, *some, None), 0)
    write_batch(writer, to, sales(5, {"id": 4, "shop": "a"}), 1)
    assert values_of_files(to) == [("a",), ("a",), ("b",), (None,)]
    closer(writer, to, 6).close_due_hours()
    assert values_of_files(to) == [("a",), ("b",), (None,)]
    assert len(list(iceberg(to).scan("decoded.shop = 'a'").plan_files())) == 1
    assert [row["id"] for row in decoded(to, "decoded.shop = 'a'")] == [0, 2, 4]
    assert [row["offset"] for row in archived_rows(to)] == list(range(6))
    assert is_valid(to)


def test_partitions_follow_the_declaration() -> None:
    """Files of earlier partitions stay as they are."""
    for number, by in enumerate([(), ("shop",), ("day", "id"), ()]):
        to = decoding(f"{SALE}, day DATE", *by)
        writer = open_writer(to)
        for first in (6 * number, 6 * number + 3):
            write_batch(
                writer, to, sales(first, *[{"id": n, "shop": "a", "day": "1970-01-03"} for n in (1, 2, 1)]), first
            )
        closer(writer, to, 6 * number + 6).close_due_hours()
    assert values_of_files(to) == [(), ("a",), (2, 1), (2, 2)]
    assert [row["offset"] for row in archived_rows(to)] == list(range(24))
    assert all(hour.is_closed for hour in hours(to).values())
    assert is_valid(to)


@pytest.mark.parametrize("name", [".x", "..", "a.b", "offset", "a/b'\"\n%", "Ä"])
def test_partitions_by_fields_of_any_name(name: str) -> None:
    to = decoding(f"`{name}` STRING, id INT", name)
    write_batch(open_writer(to), to, sales(0, {name: "a"}, {name: ""}, {name: "a"}, {}))
    assert values_of_files(to) == [("",), ("a",), (None,)]


def test_a_partition_whose_field_others_rename() -> None:
    to = decoding(SALE, "shop")
    write_batch(open_writer(to), to, sales(0, {"id": 1, "shop": "a"}), 0)
    with iceberg(to).update_schema() as change:
        change.rename_column("decoded.shop", "store")
    # The archive makes the declared field anew, and is partitioned by it.
    for first in (1, 2):
        write_batch(open_writer(to), to, sales(first, {"id": 2, "shop": "b"}), first)
    closer(open_writer(to), to, 3).close_due_hours()
    assert decoded(to) == [{"id": 1, "store": "a", "shop": None}, *[{"id": 2, "store": None, "shop": "b"}] * 2]
    assert values_of_files(to) == [("a",), ("b",)]
    assert len(decoded(to, "decoded.shop = 'b'")) == 2
    assert is_valid(to)


def test_partitions_of_others_are_refused() -> None:
    to = decoding("id INT, of STRUCT<x: INT>")
    write_batch(open_writer(to), to, sales(0, {"id": 1}), 0)
    with iceberg(to).update_spec() as change:
        change.add_identity("decoded.of.x")
    with pytest.raises(SinkError, match="another program has changed"):
        open_writer(to)


@pytest.mark.parametrize("nested", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)])
def test_text_does_not_become_bytes(nested: Callable[[Any], pa.DataType]) -> None:
    """The values of a table of text need not be text then."""
    for number, kinds in enumerate([(pa.string(), pa.binary()), (pa.binary(), pa.string())]):
        to = output(f"kept{number}")
        open_writer(to)
        first, second = (pa.struct([("x", nested(kind))]) for kind in kinds)
        evolve(iceberg(to), first, ())
        evolve(iceberg(to), first, ())
        with pytest.raises(SinkError, match=r"cannot have the fields.*decoded.x.*another name"):
            evolve(iceberg(to), second, ())


def test_a_value_that_is_too_large_to_parse_is_archived() -> None:
    to = decoding(SALE)
    large = b'{"id":2,"z":[%s0]}' % (b"0," * 10_000_000)
    write_batch(open_writer(to), to, sales(0, {"id": 1}, large, {"id": 3}))
    assert [row and row["id"] for row in decoded(to)] == [1, None, 3]
    assert archived_rows(to)[1]["value"] == large


def test_columns_that_others_add_and_names_that_they_change_survive_a_join() -> None:
    to = decoding(SALE)
    writer = open_writer(to)
    write_batch(writer, to, sales(0, {"id": 1, "shop": "a"}), 0)
    with iceberg(to).update_schema() as change:
        change.add_column("note", StringType())
        change.rename_column("decoded.shop", "store")
    writer = open_writer(to)
    write_batch(writer, to, sales(1, {"id": 2, "shop": "b"}), 1)
    closer(writer, to, 2).close_due_hours()
    assert decoded(to) == [{"id": 1, "store": "a", "shop": None}, {"id": 2, "store": None, "shop": "b"}]
    assert "note" in iceberg(to).scan().to_arrow().column_names


@pytest.mark.parametrize(
    ("effect", "step"),
    [
        ("before", 25),
        ("after", 25),
        *(pytest.param(effect, 1, marks=pytest.mark.long) for effect in ("before", "after")),
    ],
)
def test_cut_off_while_the_table_changes(tmp_path: Path, effect: Cut, step: int) -> None:
    for at in itertools.count(1, step):
        to = decoding(SALE, name=f"cut_{at}")
        write_batch(open_writer(to), to, sales(0, {"id": 1, "shop": "a"}), 0)
        wider, calls = decoding("id BIGINT NOT NULL, shop STRING", "shop", name=f"cut_{at}"), Calls(at, effect)

        def go_on(to: ArchiveOutput = wider) -> None:
            writer = open_writer(to)
            write_batch(writer, to, sales(1, {"id": 2, "shop": "a"}, {"id": 3, "shop": "b"}), 1)
            closer(writer, to, 3).close_due_hours()

        with local_store(tmp_path, calls), suppress(Wait):
            go_on()
        if calls.count < at:
            break
        go_on()
        assert [row["id"] for row in decoded(wider)] == [1, 2, 3], f"cut {effect} call {at}"
        assert values_of_files(wider) == [(), ("a",), ("b",)]
        assert is_valid(wider)
    assert at > 10


def test_what_cannot_be_decoded_or_partitioned_by() -> None:
    topic, masked = Topic("sales", schema=f"{SALE}, price DOUBLE"), (Mask("value", "hashed", key="pii"),)
    assert output_of(Archive("a", topic, "lake")).decode == topic
    for other in (Archive("a", Topic("raw"), "lake"), Archive("a", topic, "lake", decode=False)):
        assert output_of(other).decode is None
    assert output_of(Archive("a", topic, "lake", mask=masked)).decode is None
    for by, got in [(("price",), r"price double"), (("no",), "'no'"), (("shop", "shop"), "'shop'"), ("shop", "'shop'")]:
        with pytest.raises(DeclarationError, match=rf"partition_by cannot be used.*{got}.*string, boolean"):
            Archive("a", topic, "lake", partition_by=by)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="no fields"):
        Archive("a", topic, "lake", mask=masked, partition_by=("shop",))
    by_name = Archive("a", "sales", "lake", partition_by=("shop",))
    assert archive_stream(by_name, {"sales": topic}).output == output_of(by_name, topic)
    assert output_of(by_name, topic).decode == topic
    with pytest.raises(DeclarationError, match="no fields"):
        archive_stream(by_name)


def test_readers_that_order_nan_find_it(tmp_path: Path) -> None:
    to = decoding("id INT NOT NULL, x DOUBLE")
    write_batch(open_writer(to), to, sales(0, *[{"id": n, "x": x} for n, x in enumerate(["NaN", 1.0, 7.0])]))
    [file] = tmp_path.rglob("data/*/*.parquet")
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT decoded.id FROM '{file}' WHERE decoded.x > 100").fetchall() == [(0,)]
