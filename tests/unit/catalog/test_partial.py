"""A mistake in one file leaves the others as they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.catalog import load, load_partial
from penstock.cli import catalog
from penstock.errors import DeclarationError
from penstock.settings import PROJECT
from penstock.streams import TopicOutput
from penstock.supervision.declared import declared_windows
from tests.chaos.projects import other_project
from tests.support.declared_project import DECLARED

STREAM = """
from datetime import timedelta
from penstock.streams import Combiner, Stateless, Input, Stream, Topic, TopicOutput, View
COMBINE = Combiner("n BIGINT", "SELECT count(*) AS n, max(event_time) AS event_time FROM {records}")
STREAM = Stream("{name}", "other", {{"rows": Input(Topic("{topic}"), combine=COMBINE)}}, lambda rows: rows,
                TopicOutput(Topic("{name}-out"), value="n"), Stateless())
"""
GOOD = STREAM.format(name="good", topic="here", records="records")
ALL = {
    "order-minutes", "order-points", "order-counts", "shops", "minutes-by-shop", "shop-names", "order-archive",
    "order-replay", "order-history",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A copy of a project with a declaration of every kind."""
    shutil.copytree(DECLARED, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with other_project(tmp_path, {}):
        yield tmp_path


def penstock_catalog(*args: str) -> Result:
    app = typer.Typer()
    app.command()(catalog.catalog)
    return CliRunner().invoke(app, args)


def test_a_project_without_a_mistake_is_as_it_is_loaded(folder: Path) -> None:
    made, wrong = load_partial(folder)
    assert (made, wrong) == (load(folder), [])
    assert made.declared.keys() >= ALL - {"order-history"}


# An error, and a thing, that does something when it is asked what it is.
SAYS = """import os
class Out(Exception):
    def __str__(self): {does}
    __repr__ = __str__
"""
WRONG = {
    "syntax": ("def f(:\n", "SyntaxError"),
    "left": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "import": ("import nothing_of_the_kind\n", "ModuleNotFoundError"),
    "encoding": ("A = '\udcff'\n", "SyntaxError"),
    "no stream": ("STREAM = 3\n", "this is no stream"),
    "a name twice": (STREAM.format(name="order-minutes", topic="here", records="records"), "have one name"),
    "a topic twice": (
        GOOD + "STREAM.inputs['rows'].topic\nV = View('v', Topic('here', compacted=True), 'n INT')\n",
        "declared twice, differently",
    ),
    "nothing such": (GOOD + "V = View('v', 'nowhere', 'n INT')\n", "a topic that nothing declares"),
    "none": ("STREAMS = None\n", "STREAMS is no list of streams; got: None"),
    "a generator": (
        "def g():\n    yield from 1 / 0\nSTREAMS = g()\n",
        "STREAMS is no list of streams; got: <generator",
    ),
    "a list that raises": ("class L:\n    def __iter__(self): 1 / 0\nSTREAMS = L()\n", "ZeroDivisionError: division"),
    "of its own kind": ("class Out(BaseException): pass\nraise Out('done')\n", "Out: done"),
    "speechless": (SAYS.format(does="1 / 0") + "raise Out\n", "Out: (no text: ZeroDivisionError)"),
    "shapeless": (
        SAYS.format(does="1 / 0") + "STREAM = Out()\n",
        "no stream; got: (no text: ZeroDivisionError)",
    ),
    "leaving, asked": (SAYS.format(does="raise SystemExit(3)") + "raise Out\n", "Out: (no text: SystemExit)"),
    "without a name": ("def __getattr__(name): raise RuntimeError(name)\n", "RuntimeError: STREAMS"),
    "no length": ("from penstock.streams import *\nEmitFinal(timedelta(0), 5)\n", "NameError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_file_leaves_the_other_declarations(folder: Path, name: str) -> None:
    text, said = WRONG[name]
    before, _ = load_partial(folder)
    (folder / "jobs" / "shop" / "wrong.py").write_bytes(text.encode(errors="surrogateescape"))
    made, wrong = load_partial(folder)
    assert made.declared.keys() == before.declared.keys()
    assert [(said in str(e), e.app, "\n" in str(e)) for e in wrong] == [(True, "shop", False)], wrong
    with pytest.raises(DeclarationError):
        load(folder)


TOPICS = """from penstock.streams import Avro, Topic
TEXT = '{"type": "record", "name": "Pay", "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "long"}]}'
PAYMENTS = Topic("payments", schema=Avro(TEXT))
OUT = [Topic("payments-out", partitions=2, schema=Avro(TEXT))]
"""
PAY = """STREAM INTO payments-out
READ payments EVENT TIME timestamp_millis(at)
KEY id
VALUE (id, at)
AS SELECT id, at FROM payments
"""
KEPT_PAYMENTS = "UPSERT INTO mongodb.shop.payments READ payments TOMBSTONES IGNORE AS SELECT id FROM payments\n"


def test_sql_names_the_topics_in_variables_of_a_module_that_declares_nothing_else(folder: Path) -> None:
    (folder / "sql" / "streams").mkdir(exist_ok=True)
    (folder / "sql" / "streams" / "pay.sql").write_text(PAY)
    (folder / "sql" / "sinks" / "payments.sql").write_text(KEPT_PAYMENTS)
    (folder / "jobs" / "shop" / "topics.py").write_text(TOPICS)
    # Others may import it, or declare the same.
    (folder / "jobs" / "shop" / "uses.py").write_text("from jobs.shop.topics import PAYMENTS\n")
    made, wrong = load_partial(folder)
    assert (made, wrong) == (load(folder), [])
    [output] = made.streams["pay"].outputs.values()
    assert isinstance(output, TopicOutput)
    assert (output.topic.partitions, output.topic.registry_schema is None) == (2, False)
    assert made.streams["pay"].sources["payments"].registry_schema is not None
    assert made.sinks["payments"].reads[0].schema == "`id` BIGINT NOT NULL, `at` BIGINT NOT NULL"
    assert made.topics.keys() >= {"payments", "payments-out"}


OTHER = 'Input(Topic("payments"), schema="id BIGINT", event_time="timestamp_millis(id)")'


@pytest.mark.parametrize("other", ['Topic("payments", partitions=9)', OTHER])
def test_topics_of_two_modules_that_differ_are_a_mistake(folder: Path, other: str) -> None:
    (folder / "jobs" / "shop" / "topics.py").write_text(TOPICS)
    text = f"from penstock.streams import *\nrows = {other}\n"
    if "Input" in other:
        text += 'STREAM = Stream("s", "shop", {"rows": rows}, lambda rows: rows, TopicOutput(Topic("s"), value="id"),'
        text += " Stateless())\n"
    (folder / "jobs" / "shop" / "wrong.py").write_text(text)
    _, [wrong] = load_partial(folder)
    assert "one topic is declared twice, differently; got: payments" in str(wrong)


def test_ctrl_c_while_a_file_is_read_ends_the_command(folder: Path) -> None:
    (folder / "jobs" / "shop" / "slow.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    # Workers of a parallel run take no such signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            load_partial(folder)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_capture_that_is_none_hides_no_other(folder: Path) -> None:
    before, _ = load_partial(folder)
    (folder / "sql" / "captures" / "aaa.sql").write_text("CAPTURE ?")
    made, wrong = load_partial(folder)
    assert (made.declared.keys(), len(wrong)) == (before.declared.keys(), 1)


def test_the_error_of_a_wrong_combiner_names_its_stream(folder: Path) -> None:
    (folder / "jobs" / "shop" / "a.py").write_text(STREAM.format(name="bad", topic="here", records="record"))
    made, (wrong,) = load_partial(folder)
    assert "bad" in made.streams
    assert str(wrong).startswith(f"{folder}/jobs/shop/a.py:5: stream bad: the combiner of input here is refused")


@pytest.mark.parametrize("args", [(), ("--json",), ("--graph", "text"), ("--graph", "mermaid"), ("order-points",)])
def test_the_command_shows_valid_declarations_and_fails(folder: Path, args: tuple[str, ...]) -> None:
    (folder / "jobs" / "shop" / "wrong.py").write_text("1 / 0\n")
    found = penstock_catalog(*args)
    assert found.exit_code == 1
    assert "order-points" in found.stdout
    assert "wrong.py cannot be imported; got: ZeroDivisionError" in found.stderr
    if args == ("--json",):
        assert "ZeroDivisionError" in json.loads(found.stdout)["wrong"][0]


def read_in_a_process(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.catalog"], cwd=PROJECT, env={"PENSTOCK_PROJECT": str(folder)},
        capture_output=True, check=True, text=True,
    )  # fmt: skip


@pytest.mark.processes
def test_an_edit_of_the_same_size_in_the_same_second_is_seen(folder: Path) -> None:
    more = folder / "jobs" / "shop" / "more.py"
    for name in ("first", "other"):
        more.write_text(f"from penstock.streams import Archive\nMORE = Archive({name!r}, 'orders', bucket='lake')\n")
        os.utime(more, (1_700_000_000, 1_700_000_000))
        declared = json.loads(read_in_a_process(folder).stdout)["declared"]
        assert {"first", "other"} & {one["name"] for one in declared} == {name}


@pytest.mark.processes
def test_the_page_lists_valid_declarations_and_the_number_of_broken_files(folder: Path) -> None:
    (folder / "jobs" / "shop" / "wrong.py").write_text("1 / 0\n")
    done = read_in_a_process(folder)
    found = json.loads(done.stdout)
    assert found["wrong"] == 1
    assert "order-points" in {one["name"] for one in found["declared"]}
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.processes
def test_heartbeats_of_valid_declarations_continue(folder: Path) -> None:
    before = declared_windows()
    (folder / "jobs" / "shop" / "wrong.py").write_text("1 / 0\n")
    assert [one["topic"] for one in before] == ["orders"]
    assert declared_windows() == before
