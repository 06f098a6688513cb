"""What a look at a server's sessions tells of its open transactions: since when they may have drawn cursors.

An engine says when a transaction touched its first row, or was prepared, not when the statement began from whose time
the row has its cursor. What was seen at the look before makes up for it. All times are the database's clock, epoch
seconds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TransactionSnapshot:
    """now: the database's clock; oldest: when the oldest transaction now open began, None if there is none; complete:
    whether the look saw all sessions, else `oldest` is a guess."""

    now: float
    oldest: float | None
    complete: bool = True


@dataclass(frozen=True)
class ServerSession:
    """Somebody who may write, or a transaction that is prepared and has no session any more.

    began: as far as the engine tells; connection: empty if there is none; shown: when its transaction began as the
    engine shows it, None if it runs a statement without one; transaction: its number, which stays with it whatever
    becomes of the session, empty until it has one.
    """

    began: float
    connection: str = ""
    shown: float | None = None
    transaction: str = ""

    @property
    def names(self) -> set[str]:
        """What a transaction may be known by."""
        own = f"{self.connection}/{self.shown}" if self.connection else ""
        return {self.transaction, own} - {""} if self.shown is not None else set()


@dataclass
class TransactionTracker:
    """What the captures of one server share of their looks at it.

    at: monotonic time of the last one. What it saw: starts, when transactions began, by name; nameless: which of these
    had no number; statements: when sessions without a transaction began theirs, by connection; replays: whether one saw
    the server write what others had written: it may do so again.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = -math.inf
    moment: TransactionSnapshot = TransactionSnapshot(0.0, None)
    starts: dict[str, float] = field(default_factory=dict)
    nameless: set[str] = field(default_factory=set)
    statements: dict[str, float] = field(default_factory=dict)
    replays: bool = False

    def taken(self, now: float, sessions: Collection[ServerSession]) -> TransactionSnapshot:
        """The moment of a look that found these sessions; it is the last one from now on."""
        here = {name for one in sessions for name in one.names}
        # Of those that have ended, any may be what is prepared now.
        ended = [*self.statements.values(), *(self.starts[name] for name in self.nameless - here)]
        began = {one: min([one.began, *self._known(one, ended)]) for one in sessions}
        self.starts = {name: start for one, start in began.items() for name in one.names}
        self.nameless = {name for one in sessions if not one.transaction for name in one.names}
        self.statements = {one.connection: start for one, start in began.items() if one.shown is None}
        return TransactionSnapshot(now, min(began.values(), default=None))

    def _known(self, one: ServerSession, ended: list[float]) -> list[float]:
        known = [self.starts[name] for name in one.names if name in self.starts]
        if not one.connection:
            return known or ended
        # Its statement may have waited before it touched a row.
        waited = [] if one.shown is None else [self.statements.get(one.connection, one.began)]
        return known + waited
