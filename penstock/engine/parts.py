"""The first record in an order that makes something fail, found by trying it on ever smaller parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Whether a run over the first n records fails, some of them left out: why, or nothing.
Fails = Callable[[int, frozenset[int]], str]


class Unclear(Exception):
    """What fails does so without a record, or not each time."""


@dataclass(frozen=True)
class Parts:
    """total: how many records there are. What fails with the first n is taken to fail with more.

    So a record is found that fails by itself, or with those before it, as the last one of a sum that is too large.
    """

    total: int
    fails: Fails

    def found(self, most: int) -> tuple[dict[int, str], bool]:
        """The records without which all others pass, with the reason; and whether that is all of them, or `most`.

        Nothing if all pass. Unclear if no record is to blame.
        """
        found: dict[int, str] = {}
        passes = 0
        while self.fails(self.total, frozenset(found)):
            if not found and self.fails(0, frozenset()):
                raise Unclear("it fails without any record")
            if len(found) == most:
                return found, False
            at, why = self._next(passes, frozenset(found))
            found[at], passes = why, at + 1
        return found, True

    def _next(self, passes: int, without: frozenset[int]) -> tuple[int, str]:
        """The record behind those that pass with which it fails first: bad ones often lie side by side."""
        step = 1
        while not self.fails(high := min(passes + step, self.total), without):
            if high == self.total:
                raise Unclear("it does not fail each time")
            passes, step = high, step * 2
        while high - passes > 1:
            middle = (passes + high) // 2
            if self.fails(middle, without):
                high = middle
            else:
                passes = middle
        # Once more, so that a fault of the moment does not put a good record aside.
        why = self.fails(high, without)
        if not why or self.fails(passes, without):
            raise Unclear("it does not fail each time")
        return passes, why
