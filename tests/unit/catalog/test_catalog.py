"""What is declared: found, and checked together."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog import build, discover, load
from penstock.catalog.validation import Declaration
from penstock.errors import DeclarationError
from penstock.model import capture
from penstock.model.capture import Capture
from penstock.model.declaration import CatalogNode, Declared
from penstock.model.topic import COMMITS
from penstock.settings import PROJECT
from penstock.sinks.influxdb.config import InfluxDB
from penstock.streams import (
    Archive,
    Backfill,
    EmitFinal,
    IcebergTable,
    Input,
    Panel,
    RowsQuery,
    Stateless,
    Stream,
    Table,
    Topic,
    TopicOutput,
    View,
)
from tests.chaos.projects import other_project
from tests.support.declared_project import DECLARED

MINUTE = timedelta(minutes=1)
ORDERS, SHOPS = Topic("orders"), Topic("shops", compacted=True)
POINTS = InfluxDB(sink="s", database="shop", measurement="m")


def stream(name: str = "minutes", **changed: Any) -> Stream:
    given: dict[str, Any] = {
        "app": "shop",
        "inputs": {"rows": Input(ORDERS, schema="at BIGINT", event_time="timestamp_millis(at)", late_records="keep")},
        "transform": lambda rows: rows,
        "output": TopicOutput(Topic(name), "key", "value"),
        "output_mode": EmitFinal(MINUTE, MINUTE),
    }
    return Stream(name, **{**given, **changed})


def captured(select: str = "SELECT id, at FROM shops", name: str = "shops") -> Capture:
    text = f"CAPTURE INTO shops PARTITIONS 4 FROM mysql till KEY (id) CURSOR at AS {select}"
    return capture.parse(text, Path(f"sql/captures/{name}.sql"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Writes a module of a project of its own."""
    folder = tmp_path / "jobs" / "shop"
    folder.mkdir(parents=True)

    def write(name: str, text: str) -> Path:
        path = folder / f"{name}.py"
        path.write_text(text)
        return path

    with other_project(tmp_path, {}):
        yield write


# What each says of itself


def test_every_kind_says_what_it_reads_and_writes() -> None:
    both = {"a": TopicOutput(Topic("a"), value="v"), "b": POINTS}
    archive = Archive("kept", ORDERS, bucket="lake", prefix="shop/orders")
    names = View("v", "shops", "name STRING", query_by="name")
    joined = stream(
        inputs={"rows": Input(ORDERS), "shops": Table(SHOPS, "name STRING")},
        transform=lambda rows, shops: rows.join(shops),
    )
    every = stream(inputs={"rows": Input(pattern="o.*")}, output=both, output_mode=Stateless())
    topic = [CatalogNode("topic", name) for name in ("orders", "shops", "minutes", "a", "shops-dead-letter")]
    expected: list[tuple[Declared, str, list[CatalogNode], list[CatalogNode]]] = [
        (
            stream(), "stream", [topic[0]],
            [topic[2], CatalogNode("topic", "orders-dead-letter"), CatalogNode("topic", "minutes-late")],
        ),
        (joined, "stream", topic[:2], [topic[2], topic[4]]),
        (
            every, "sink", [CatalogNode("pattern", "o.*")],
            [topic[3], CatalogNode("store", "influxdb:shop.m"), CatalogNode("topic", "s-dead-letter")],
        ),
        (
            captured("SELECT s.id, s.at FROM shops s JOIN town.places p ON p.id = s.id JOIN shops t ON t.id = s.up"),
            "capture", [CatalogNode("table", "till:shops"), CatalogNode("table", "till:town.places")], [topic[1]],
        ),
        (names, "view", [topic[1]], []),
        (Panel("p", "P", names, {"name": "Name"}), "panel", [CatalogNode("view", "v")], []),
        (archive, "archive", [topic[0]], [CatalogNode("store", "bucket:lake/shop/orders")]),
        (Archive("whole", stream(), bucket="lake"), "archive", [topic[2]], [CatalogNode("store", "bucket:lake/whole")]),
        (Backfill("b", archive, ORDERS), "backfill", [CatalogNode("archive", "kept")], [topic[0]]),
        (Backfill("c", "files", stream()), "backfill", [CatalogNode("source", "files")],
         [CatalogNode("stream", "minutes")]),
        (of_table(IcebergTable("shop.orders", "lake")), "backfill", [CatalogNode("source", "iceberg.lake:shop.orders")],
         [topic[0]]),
    ]  # fmt: skip
    for one, kind, reads, writes in expected:
        assert (one.kind, list(one.reads), list(one.writes)) == (kind, reads, writes)
    assert [one.app for one, *_ in expected] == [
        "shop",
        "shop",
        "shop",
        "captures",
        "views",
        None,
        "archives",
        "archives",
        None,
        None,
        None,
    ]


def test_each_knows_where_it_was_declared() -> None:
    line = sys._getframe().f_lineno
    made: list[Declared] = [stream(), View("v", SHOPS, "name STRING")]
    assert made[1].location == f"{__file__}:{line + 1}"
    assert made[0].location.startswith(f"{__file__}:")
    assert captured().location == "sql/captures/shops.sql:1:1"
    assert View("v", SHOPS, "name STRING") == made[1]


def of_table(table: IcebergTable, schema: str = "id BIGINT, amount DECIMAL(9, 2), raw BINARY") -> Backfill:
    rows = RowsQuery("at", "SELECT id, amount FROM records", schema)
    return Backfill("t", table, TopicOutput(ORDERS, key="id", value=("id", "amount")), rows=rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: View("Names", SHOPS, "name STRING"), "the name of view 'Names' is not usable"),
        (lambda: View("v", ORDERS, "name STRING"), "a view's topic must be compacted; got: topic orders"),
        (lambda: View("v", SHOPS, "name"), "the schema of view v is no Spark DDL"),
        (lambda: View("v", SHOPS, "name STRING", query_by="town"), "cannot be queried by this field; got: town"),
        (
            lambda: View("v", SHOPS, "tags ARRAY<STRING>, n INT", query_by=("n", "tags")),
            "cannot be queried by this field; got: tags; hint: take each once, of these: n",
        ),
        (lambda: Archive("a", ORDERS, bucket="Lake"), "the bucket's name is not usable"),
        (lambda: Archive("a", ORDERS, bucket="lake", prefix="/x"), "the prefix is not usable"),
        (lambda: Archive("a", ORDERS, bucket="lake", prefix="x/"), "the prefix is not usable"),
        (
            lambda: Archive("a", ORDERS, bucket="lake", table="orders"),
            "the name of the table is not usable; got: 'orders'; hint: write it as namespace.table",
        ),
        (
            lambda: Archive("a", stream(output=POINTS), bucket="lake"),
            "stream minutes does not write one topic; got: influxdb:shop.m",
        ),
        (lambda: Backfill("b", "", ORDERS), "backfill b has no source"),
        (lambda: Backfill("b", ORDERS, "orders"), "backfill b has no source"),  # type: ignore[arg-type]
        (lambda: Backfill("b", "files", None), "backfill b has no target"),  # type: ignore[arg-type]
        (lambda: Backfill("b", IcebergTable("shop.orders"), ORDERS), "backfill b reads rows of a table, which are no"),
        (lambda: of_table(IcebergTable("shop.orders"), "id TIME"), "field id has a type that is not read"),
        (lambda: of_table(IcebergTable("shop.orders"), "id"), "the schema of backfill t is no Spark DDL"),
        *(
            (partial(IcebergTable, *names), "an Iceberg table has no name that can be read")
            for names in (("orders",), ("shop.",), ("a b.c",), ("shop.orders", "my.lake"), (None,))
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DeclarationError) as e:
        make()
    assert message in str(e.value)


# Checked together


def test_a_catalog_has_everything_by_kind_and_by_name() -> None:
    kept = Archive("kept", ORDERS, bucket="lake")
    made = build(
        [stream(), View("names", "shops", "name STRING"), kept, Backfill("again", kept, "minutes")], [captured()]
    )
    assert list(made.declared) == ["minutes", "kept", "shops", "names", "again"]
    assert list(made.supervised) == ["minutes", "shops", "names@1"]
    assert (list(made.views), list(made.archives), list(made.backfills)) == (["names"], ["kept"], ["again"])
    assert {app: [one.name for one in of] for app, of in made.apps.items()} == {
        "captures": ["shops"],
        "shop": ["minutes"],
        "views-1": ["names@1"],
    }
    assert made.supervised_named("shops") is made.captures["shops"]
    with pytest.raises(DeclarationError, match="no such stream; got: names"):
        made.supervised_named("names")


def test_a_topic_that_only_a_view_or_an_archive_names_is_declared_by_it() -> None:
    made = build([View("v", SHOPS, "name STRING"), Archive("a", ORDERS, bucket="lake")])
    assert made.topics == {"shops": SHOPS, "orders": ORDERS, COMMITS.name: COMMITS}


KEPT = Archive("kept", ORDERS, bucket="lake")


@pytest.mark.parametrize(
    ("found", "captures", "message"),
    [
        ([stream("shops")], [captured()], "this capture and the stream of HERE have one name; got: shops"),
        ([stream("a"), stream("a")], [], "this stream and the stream of HERE have one name; got: a"),
        ([KEPT, View("kept", SHOPS, "n INT")], [], "HERE: this view and the archive of HERE have one name"),
        ([View("v", "shops", "n INT")], [], "HERE: view v names a topic that nothing declares; got: shops"),
        ([stream(), View("v", "orders", "n INT")], [], "HERE: view v: a view's topic must be compacted"),
        ([stream(), Archive("a", "nowhere", bucket="lake")], [], "archive a names a topic that nothing declares"),
        ([Archive("a", stream(), bucket="lake")], [], "archive a names a stream that is not in the catalog"),
        ([stream(), KEPT, View("v", Topic("orders", compacted=True), "n INT")], [], "declared twice, differently"),
        ([KEPT, Archive("too", "orders", bucket="lake", prefix="kept")], [], "archive kept of HERE write to one"),
        ([stream(), Backfill("b", KEPT, ORDERS)], [], "HERE: backfill b reads an archive that is not in the catalog"),
        ([Backfill("b", "files", "orders")], [], "HERE: backfill b names a topic that nothing declares; got: orders"),
        ([stream(), Backfill("b", "files", Topic("orders", 9))], [], "one topic is declared twice, differently"),
        ([View(n, Topic("t", compacted=True, config={"a": n}), "n INT") for n in "vw"], [], "twice, differently"),
        ([stream(), Backfill("b", "files", stream("other"))], [], "names a stream that is not in the catalog"),
        (
            [], [captured(), captured(name="too")],
            "sql/captures/too.sql:1:14: capture too and capture shops of sql/captures/shops.sql:1:14 write to one",
        ),
        ([stream(app="captures")], [captured()], "HERE: an app of streams has the name of the captures' app"),
        ([stream(), stream("b", output=TopicOutput(Topic("minutes"), value="v"))], [], "write to one place"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(found: list[Declaration], captures: list[Capture], message: str) -> None:
    with pytest.raises(DeclarationError) as e:
        build(found, captures)
    said = re.sub(f"{re.escape(__file__)}:[0-9]+", "HERE", str(e.value))
    assert message in said


# Declaration


def test_a_project_is_found_whole_each_thing_once() -> None:
    with other_project(DECLARED, {}):
        found = load()
    assert set(found.streams) == {"order-minutes", "order-points", "order-counts"}
    assert set(found.captures) == {"shops"}
    assert set(found.views) == {"minutes-by-shop", "shop-names"}
    assert set(found.panels) == {"shop-totals"}
    assert (set(found.archives), set(found.backfills)) == ({"order-archive"}, {"order-replay", "first-year"})
    place = found.archives["order-archive"].location
    assert place.startswith(str(DECLARED / "jobs" / "shop" / "kept.py:"))


def test_the_examples_of_the_documentation_are_a_project(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "catalog.md").read_text()
    example = re.compile(r"`((?:jobs|sql)/[a-z/]+\.(?:py|sql))`, [^\n]*:\n\n```[a-z]+\n(.*?)```", re.DOTALL)
    for path, text in example.findall(page):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with other_project(tmp_path, {}):
        kinds = {one.kind for one in load().declared.values()}
    assert kinds == {"stream", "sink", "capture", "view", "panel", "archive", "backfill"}


def test_names_with_an_underscore_before_them_and_private_modules_are_left_out(
    project: Callable[[str, str], Path], tmp_path: Path
) -> None:
    text = "from penstock.streams import Archive\n_A = Archive('a', 'o', bucket='lake')\n"
    project("public", text + "_ALL = [_A]\nB = 3\nEMPTY = []\nC = (B, Archive('c', 'o', bucket='lake'), 'text')\n")
    project("_private", text + "A = _A\n")
    assert [one.name for one in discover(tmp_path)] == ["c"]


def test_what_a_private_module_makes_is_declared_where_it_is_imported(
    project: Callable[[str, str], Path], tmp_path: Path
) -> None:
    project("_parts", "from penstock.streams import Archive\nA = Archive('a', 'o', bucket='lake')\n")
    project("x", "from jobs.shop._parts import A\n")
    project("y", "from jobs.shop._parts import A\n")
    assert [one.name for one in discover(tmp_path)] == ["a"]


NESTED = """from penstock.streams import Archive, Topic

A = Archive("a", Topic("o"), "lake", "x")
B = Archive("b", Topic("p"), "lake", "x_hours/b")
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import penstock\n\nA = 1 / 0\n", "{path} cannot be imported; got: ZeroDivisionError"),
        ("STREAM = 3\n", "{path}: this is no stream; got: 3"),
        (
            "from penstock.streams import Archive\n\nA = Archive('a', 'o', bucket='lake', table='o')\n",
            "{path}:3: archive a: the name of the table is not usable",
        ),
        (
            NESTED,
            "{path}:4: archive b is in the folder of archive a; got: s3://lake/x_hours/b/ in s3://lake/x_hours/",
        ),
        (
            "from penstock.streams import View\n\nV = View('v', 'shops', schema='n INT')\n",
            "{path}:3: view v names a topic that nothing declares",
        ),
    ],
)
def test_a_mistake_names_its_file(project: Callable[[str, str], Path], text: str, message: str) -> None:
    path = project("wrong", text)
    with pytest.raises(DeclarationError) as e:
        load()
    assert str(e.value).startswith(message.format(path=path))


@pytest.mark.processes
def test_the_catalog_needs_neither_spark_nor_a_broker() -> None:
    code = "import sys, penstock.catalog as c; c.load(); import penstock.catalog.listing as l; l.document(c.load());"
    code += "print([m for m in ('pyspark', 'confluent_kafka', 'airflow', 'sqlalchemy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env={"PENSTOCK_PROJECT": str(DECLARED)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_setting_of_a_topic_is_said_once() -> None:
    views = [
        View(f"v{i}", Topic("t", compacted=True, config=c), "n INT") for i, c in enumerate(({"a": "1"}, {}, {"b": "2"}))
    ]
    assert build(views).topics["t"].config == {"a": "1", "b": "2"}
