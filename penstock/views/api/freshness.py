"""How fresh an answer is, and how fresh its caller wants it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.views.api.problems import NotReady

# Milliseconds of age from which an answer is marked as stale.
STALE_MS = 10_000


class AnswerFreshness(NamedTuple):
    """How fresh an answer is. lag: records after the offsets it was made of; age_ms: since an end of the
    topic was asked for that all of it reaches."""

    lag: int
    age_ms: int

    @property
    def stale(self) -> bool:
        return self.age_ms > STALE_MS

    @property
    def data(self) -> dict[str, Any]:
        return {"lag": self.lag, "age_ms": self.age_ms, "stale": self.stale}

    @classmethod
    def least(cls, several: Iterable[AnswerFreshness]) -> AnswerFreshness:
        parts = list(several)
        return cls(sum(part.lag for part in parts), max((part.age_ms for part in parts), default=0))


@dataclass(frozen=True)
class RequestContext:
    """What a request says of itself. deadline: monotonic; forwarded: by another instance, so it is not sent on;
    max_age_ms: how old an answer may be."""

    deadline: float
    forwarded: bool = False
    max_age_ms: int | None = None

    def allows(self, fresh: AnswerFreshness) -> None:
        if self.max_age_ms is not None and fresh.age_ms > self.max_age_ms:
            raise NotReady(
                "what is known is older than it may be",
                got=f"{fresh.age_ms} ms",
                hint="ask again, or allow for more by max_age_ms",
            )


def least(parts: Iterable[Mapping[str, Any]]) -> AnswerFreshness:
    """Of what several instances answered."""
    return AnswerFreshness.least(
        AnswerFreshness(part["freshness"]["lag"], part["freshness"]["age_ms"]) for part in parts
    )
