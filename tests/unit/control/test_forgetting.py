"""What is not declared any more: stopped at once, forgotten after ten minutes, and as before if it is back earlier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import Table, select, update

from penstock.control import Actor, Control, ProgressRow, tables
from penstock.control.repositories.apps import FORGET_MS, DeclaredApps
from penstock.control.repositories.data_loss import DataLoss
from penstock.supervision.decision.facts import facts_of
from tests.support.control_tables import create_tables
from tests.support.supervised_platform import Platform

ME = Actor("me", "cli")


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """App `shop` of the streams `sales`, which is stopped, and `returns`; it was released once. App `bank`."""
    made = Control(f"sqlite:///{tmp_path / 'control.db'}")
    create_tables(made)
    made.sync(ALL)
    made.set_desired(["sales"], "off", ME)
    made.release("shop", ME, digest="code")
    made.report([ProgressRow("sales", "shop", "i", rows_in=7)], keep=False)
    made.report_data_loss("sales", [DataLoss("topic", "cut")])
    yield made
    made.engine.dispose()


def declared(**apps: list[str]) -> DeclaredApps:
    supervised = {name: SimpleNamespace(name=name, app=app) for app, names in apps.items() for name in names}
    return cast("DeclaredApps", SimpleNamespace(apps=apps, supervised=supervised))


ALL = declared(shop=["sales", "returns"], bank=["rates"])
NO_SHOP = declared(bank=["rates"])
NO_SALES = declared(shop=["returns"], bank=["rates"])


def pass_time(control: Control, ms: int) -> None:
    with control.begin() as c:
        for table in (tables.app, tables.stream):
            c.execute(update(table).values(absent_since=table.c.absent_since - ms))


def names(control: Control, table: Table) -> set[str]:
    with control.begin() as c:
        return set(c.execute(select(table.c.app if table is tables.release else table.c.name)).scalars())


@pytest.mark.parametrize("without", [NO_SHOP, NO_SALES], ids=["the app", "one stream"])
def test_what_is_away_for_a_moment_stays_stopped_and_released(control: Control, without: DeclaredApps) -> None:
    for _ in range(3):
        control.sync(without)
        pass_time(control, FORGET_MS // 4)
    control.sync(ALL)
    assert control.desired("shop") == {"sales": "off", "returns": "on"}
    app = control.app("shop")
    assert app
    assert (app.release_seq, app.digest) == (1, "code")
    assert [(row.number, row.digest) for row in control.releases("shop")] == [(1, "code")]
    assert control.progress()["sales"].rows_in == 7
    assert [row.topic for row in control.data_losses("sales")] == ["topic"]
    for _ in range(2):
        pass_time(control, FORGET_MS // 2)
        control.sync(ALL)
    assert control.desired("shop")["sales"] == "off", "its time away has ended"


def test_what_is_away_is_as_if_it_did_not_exist(control: Control) -> None:
    control.sync(NO_SHOP)
    assert (control.desired(), control.desired("shop")) == ({"rates": "on"}, {})
    [(app, streams)] = control.supervised().items()
    assert (app, {name: row.desired for name, row in streams.items()}) == ("bank", {"rates": "on"})
    assert (control.app("shop"), control.app_of("sales")) == (None, None)
    assert [app.name for app in control.apps()] == ["bank"]
    assert control.stream_progress()[1].keys() == {"rates"}
    assert control.undeclared("shop") == ["returns", "sales"]
    assert facts_of(control, "shop") is None, "nothing launches its driver"
    control.sync(NO_SALES)
    assert (control.desired("shop"), control.undeclared("shop")) == ({"returns": "on"}, ["sales"])


def test_what_is_away_for_long_is_forgotten(control: Control) -> None:
    control.sync(NO_SHOP)
    pass_time(control, FORGET_MS)
    control.sync(NO_SHOP)
    assert names(control, tables.app) == {"bank"}
    assert names(control, tables.stream) == {"rates"}
    assert names(control, tables.progress) | names(control, tables.data_loss) | names(control, tables.release) == set()
    control.sync(ALL)
    assert control.desired("shop") == {"sales": "on", "returns": "on"}, "it is new"


def test_a_file_that_cannot_be_read_lets_nothing_be_forgotten(control: Control) -> None:
    control.sync(NO_SALES, forget=False)
    assert control.undeclared("shop") == []
    control.sync(NO_SHOP)
    pass_time(control, FORGET_MS)
    control.sync(NO_SALES, forget=False)
    assert control.desired("shop") == {"returns": "on"}, "what can be read is back"
    assert control.undeclared("shop") == ["sales"]
    control.sync(ALL)
    assert control.desired("shop") == {"sales": "off", "returns": "on"}


def test_a_stream_that_moves_keeps_its_desired_state_though_it_was_away(control: Control) -> None:
    moved = declared(shop=["returns"], bank=["rates", "sales"])
    control.sync(NO_SALES)
    control.sync(moved, forget=False)
    assert control.app_of("sales") is None, "a file of the other app may declare it"
    control.sync(moved)
    assert control.desired("bank") == {"rates": "on", "sales": "off"}
    assert control.undeclared("shop") == []


@pytest.mark.processes
def test_a_driver_whose_app_is_away_is_replaced_when_it_is_back(tmp_path: Path) -> None:
    p = Platform(tmp_path)
    try:
        p.supervisor().tick()
        p.control.sync(NO_SHOP)
        assert p.supervisor().tick().why == "the control database does not know this app"
        assert p.control.drivers()[0].session.alive(), "it looks itself, and drains"
        p.control.end_driver(p.launched[0], "no stream of the app is wanted", "unwanted")
        assert p.supervisor().tick().action == "rest"
        assert len(p.launched) == 1
        p.control.sync(declared(a=["s"]))
        p.supervisor().tick()
        assert len(p.launched) == 2
    finally:
        p.close()


def test_a_driver_gets_its_time_to_drain_though_its_other_streams_were_stopped_long_ago(control: Control) -> None:
    with control.begin() as c:
        c.execute(update(tables.stream).values(changed_at=1))
    control.sync(declared(shop=["sales"], bank=["rates"]))
    assert (control.stopped_since("shop") or 0) > control.now() - 60_000
