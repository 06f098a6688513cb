"""Standbys on MariaDB and PostgreSQL: of those who launch one, give it up or release its app at once, one wins."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.control import Actor, Control, tables

pytestmark = pytest.mark.integration

ME = Actor("me", "cli")


def launched(control: Control, app: str, pool: ThreadPoolExecutor) -> str:
    """The standby of an app that was released, launched by one of four; the driver before it has ended."""
    with control.engine.begin() as c:
        c.execute(tables.app.insert().values(name=app, release_seq=0, restarts=0))
    running = control.claim(app, None, host="h", owner="o", log="")
    assert running
    control.release(app, ME, digest="new")
    control.request_standby(app, running, 1)
    row = control.app(app)
    assert row
    asked = [pool.submit(control.claim_standby, row, host="h", owner="o", log="") for _ in range(4)]
    [standby] = [claimed for one in asked if (claimed := one.result())]
    assert control.report_standby(standby)
    control.end_driver(running, "release 1", "released")
    return standby


@pytest.mark.parametrize("first", range(3))
def test_a_standby_takes_over_or_is_given_up(own_control: Control, first: int) -> None:
    control = own_control
    with ThreadPoolExecutor(4) as pool:
        for n in range(8):
            app = f"standby-{first}-{n}"
            standby = launched(control, app, pool)
            steps: list[tuple[str, Callable[..., object], tuple[object, ...]]] = [
                ("take over", control.take_over, (app, standby)),
                ("give up", control.give_up_standby, (app, standby)),
                ("release", control.release, (app, ME)),
            ]
            asked = {name: pool.submit(step, *given) for name, step, given in steps[first:] + steps[:first]}
            has_taken_over, is_given_up = (asked[name].result() for name in ("take over", "give up"))
            row, current = control.driver(standby), control.app(app)
            assert row
            assert current
            assert (current.incarnation == standby) is has_taken_over
            # Where the release was first, it is given up all the same.
            assert is_given_up is not has_taken_over
            assert row.state == ("launching" if has_taken_over else "draining")
