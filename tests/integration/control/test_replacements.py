"""Replacements on MariaDB and PostgreSQL: of those who change the same one at once, one wins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.control import Actor, Control
from penstock.control.repositories.apps import DeclaredApps
from penstock.errors import ReleaseRefused
from penstock.supervision.replacement_options import replacement_options

pytestmark = pytest.mark.integration

ME = Actor("me", "cli")
APP, STREAMS = "replaced", ("s", "t")
OPTIONS = replacement_options()
DECLARED = cast(
    "DeclaredApps",
    SimpleNamespace(apps={APP: ()}, supervised={name: SimpleNamespace(name=name, app=APP) for name in STREAMS}),
)


def test_of_many_at_once_one_wins(own_control: Control) -> None:
    control = own_control
    control.sync(DECLARED)
    control.release(APP, ME, digest="old")

    def ask(n: int) -> str:
        """A third of them releases instead."""
        try:
            if n % 3 == 2:
                return f"release {control.release(APP, ME, digest='old')}"
            return control.request_replacement(STREAMS[n % 3], APP, "new", "old", ME, OPTIONS).id
        except ReleaseRefused:
            return ""

    with ThreadPoolExecutor(6) as pool:
        done = [one for one in pool.map(ask, range(24)) if one]
    [row] = control.replacements()
    releases = control.releases(APP)
    assert [one for one in done if not one.startswith("release")] == [row.id]
    assert len(releases) == len(done), "the first release, and those before the replacement"
    assert all(release.at <= row.requested_at for release in releases)
    assert control.move_replacement(row.id, "following")

    def end(n: int) -> bool:
        if n % 3 == 0:
            return control.begin_cut(row.id) is not None
        if n % 3 == 1:
            return control.move_replacement(row.id, "cancelled", actor=ME)
        return control.undo_replacement(row.id, "a row differs")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(end, range(24)))
    ended = control.replacement(row.id)
    app = control.app(APP)
    assert ended
    assert app
    # The code of the running version is released again wherever that of the new one was.
    assert (ended.state in ("cancelled", "failed"), app.digest) == (True, "old")
    made = [release.digest for release in control.releases(APP)[: -len(releases)]]
    assert made == ([] if ended.release_seq is None else ["old", "new"])
    assert control.desired(f"replacement:{row.name}") == {f"replacement:{row.name}": "off"}
    control.sync(DECLARED)
    assert control.app(f"replacement:{row.name}") is None
