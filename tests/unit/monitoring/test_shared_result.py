"""What is computed once for all who ask."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from penstock.monitoring.dashboard.shared_result import SharedResult


class Work:
    """Counts how often it is done; waits until it may end."""

    def __init__(self) -> None:
        self.done, self.begun, self.may_end = 0, Event(), Event()
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.begun.set()
        assert self.may_end.wait(30)
        self.done += 1
        if self.error:
            raise self.error
        return self.done


def test_who_asks_while_it_is_computed_waits_for_it() -> None:
    work, now = Work(), 0.0
    shared = SharedResult(work, clock=lambda: now)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(shared.read)
        assert work.begun.wait(30)
        others = [pool.submit(shared.read) for _ in range(3)]
        work.may_end.set()
        assert [one.result(30) for one in (first, *others)] == [1] * 4
    now = 0.9
    assert shared.read() == 1
    now = 1.0
    assert shared.read() == 2


def test_after_a_change_nobody_gets_what_was_computed_before_it() -> None:
    work = Work()
    shared = SharedResult(work, clock=lambda: 0.0)
    with ThreadPoolExecutor(2) as pool:
        before = pool.submit(shared.read)
        assert work.begun.wait(30)
        shared.invalidate()
        work.begun.clear()
        after = pool.submit(shared.read)
        assert work.begun.wait(30)
        work.may_end.set()
        assert {before.result(30), after.result(30)} == {1, 2}
    assert shared.read() == after.result()


@pytest.mark.parametrize(("keep_failures", "done"), [(True, 1), (False, 2)])
def test_a_failure_is_kept_only_if_asked(keep_failures: bool, done: int) -> None:
    work = Work()
    work.may_end.set()
    work.error = ValueError("away")
    shared = SharedResult(work, keep_failures=keep_failures, clock=lambda: 0.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="away"):
            shared.read()
    assert work.done == done
