"""Calls to a store that is unavailable."""

from __future__ import annotations

import time

import pytest

from penstock.backfill import retry
from penstock.backfill.retry import retry_while_away
from penstock.errors import Wait


def test_a_store_is_asked_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_PAUSE", 0.01)
    said: list[str] = []
    answers: list[object] = [Wait("away", seconds=0.0), Wait("away", seconds=0.0), "there"]

    def ask() -> object:
        one = answers.pop(0)
        if isinstance(one, Wait):
            raise one
        return one

    assert retry_while_away(ask, said.append) == "there"
    assert len(said) == 2
    assert "away" in said[0]
    monkeypatch.setattr(retry, "RETRY_TIMEOUT", 0.1)

    def never() -> None:
        raise Wait("away", seconds=0.0)

    with pytest.raises(Wait, match="away"):
        retry_while_away(never, said.append)


def test_a_first_call_longer_than_the_timeout_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_TIMEOUT", 0.05)
    reasons: list[str] = []

    def call() -> str:
        if not reasons:
            time.sleep(0.1)
            raise Wait("away", seconds=0.0)
        return "there"

    assert retry_while_away(call, reasons.append) == "there"
    assert len(reasons) == 1
