"""Where pollers lose rows: each fault first makes a poller as they are commonly written lose a row."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from penstock.capture.polling.poller import Poller
from tests.support.captures import Source, until
from tests.support.wait import wait_until

EPOCH = datetime(1970, 1, 1)
PAGE = 5


class Killed(BaseException):
    pass


class Naive:
    """Goes on behind the last cursor it saw, page by page, and keeps that cursor before it writes the page.

    overlap: by how much it goes back each time.
    """

    def __init__(self, source: Source, overlap: timedelta = timedelta(0)) -> None:
        self._source, self._overlap = source, overlap
        self.last, self.rows = EPOCH, dict[int, str]()

    def poll(self, die_at: int | None = None) -> None:
        behind = self.last if self.last == EPOCH else self.last - self._overlap
        query = f"SELECT id, name, changed FROM {self._source.name} WHERE changed > %s ORDER BY changed LIMIT {PAGE}"
        while page := self._source.rows(query, behind):
            behind = self.last = page[-1][2]
            for number, (key, name, _) in enumerate(page):
                if number == die_at:
                    raise Killed
                self.rows[key] = name

    def lost(self) -> set[str]:
        found = self._source.rows(f"SELECT id, name FROM {self._source.name}")
        return {name for key, name in found if self.rows.get(key) != name}


def opened(source: Source, more: str = "") -> tuple[Naive, Poller]:
    poller = source.poller(more=more)
    until(poller, lambda: poller.position.snapshot is None, "a snapshot")
    return Naive(source), poller


def until_lost(source: Source, naive: Naive, poller: Poller, *statements: str) -> None:
    """Where it takes luck: try until the naive poller has lost a row. Both poll after each statement."""
    for _ in range(30):
        for statement in statements:
            source.sql(statement)
            naive.poll()
            poller.poll()
        if naive.lost():
            return
    raise AssertionError("the naive poller lost nothing")


def test_a_transaction_that_commits_after_later_ones(source: Source) -> None:
    naive, poller = opened(source)
    slow = source.begun("slow")
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('fast')")
    naive.poll()
    poller.poll()
    slow.commit()
    naive.poll()
    assert naive.lost() == {"slow"}
    poller.poll()
    assert source.same()


def test_a_transaction_longer_than_the_overlap(source: Source) -> None:
    _, poller = opened(source, more="HOLD 2 SECONDS DELAY 1 SECOND")
    naive = Naive(source, overlap=timedelta(seconds=1))
    slow = source.begun("slow")
    wait_until(lambda: poller.poll() >= 0 and poller.position.skipped is not None, every=0.2, what="it is too long")
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('fast')")
    naive.poll()
    poller.poll()
    slow.commit()
    naive.poll()
    assert naive.lost() == {"slow"}
    wait_until(lambda: poller.poll() >= 0 and poller.position.skipped is None, every=0.2, what="it is read")
    assert source.same()


def test_one_cursor_on_both_sides_of_a_page(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", PAGE)
    naive, poller = opened(source)
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_12")
    naive.poll()
    assert len(naive.lost()) == 7
    poller.poll()
    assert source.same()


def test_a_clock_that_steps_back(source: Source) -> None:
    naive, poller = opened(source)
    insert = f"INSERT INTO {source.name} (name, changed) VALUES"
    ahead, behind = "('ahead', NOW(6) + INTERVAL 0.5 SECOND)", "('behind', NOW(6) - INTERVAL 0.5 SECOND)"
    until_lost(source, naive, poller, f"{insert} {ahead}", f"{insert} {behind}")
    assert source.same()


def test_two_changes_in_one_second_where_there_are_no_fractions(source: Source) -> None:
    source.sql(
        f"ALTER TABLE {source.name} MODIFY changed TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP"
    )
    naive, poller = opened(source)
    insert = f"INSERT INTO {source.name} (name) VALUES"
    until_lost(source, naive, poller, f"{insert} ('first')", f"{insert} ('second')")
    assert source.same()


def test_rows_at_the_epoch_and_without_a_cursor(source: Source) -> None:
    source.sql(f"ALTER TABLE {source.name} MODIFY changed DATETIME(6) NULL")
    naive, poller = opened(source)
    values = "('epoch', '1970-01-01'), ('none', NULL), ('now', UTC_TIMESTAMP(6))"
    source.sql(f"INSERT INTO {source.name} (name, changed) VALUES {values}")
    naive.poll()
    assert naive.lost() == {"epoch", "none"}
    poller.poll()
    assert source.same()


def test_a_page_that_is_killed_half_way(source: Source) -> None:
    naive, poller = opened(source)
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(4)))
    with pytest.raises(Killed):
        naive.poll(die_at=2)
    naive.poll()
    assert naive.lost() == {"2", "3"}

    def kill(at: str) -> None:
        if at == "mid-produce":
            raise Killed

    poller.session.hook = kill
    with pytest.raises(Killed):
        poller.poll()
    source.pollers.pop().close()
    source.poller().poll()
    assert source.same()
