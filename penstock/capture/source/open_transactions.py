"""Derives from a server's sessions the earliest time at which an open transaction may have assigned a cursor value.

An engine reports when a transaction touched its first row, or was prepared, not the start of the statement, whose time
may be the row's cursor. The result of the query before compensates for that. All times are epoch seconds of the
database's clock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TransactionSnapshot:
    """The open transactions of a server at one moment. Times are epoch seconds of the database's clock.

    Attributes:
        now: The database's clock.
        oldest: When the oldest open transaction began; None if there is none.
        complete: All sessions were visible; if not, `oldest` is a guess.
    """

    now: float
    oldest: float | None
    complete: bool = True


@dataclass(frozen=True)
class ServerSession:
    """A session that may write, or a prepared transaction without a session.

    Attributes:
        began: When it began, as far as the engine tells.
        connection: Number of its connection; empty if it has none.
        shown: When its transaction began as the engine shows it; None if it runs a statement without one.
        transaction: Number of its transaction, which outlives the session; empty until it has one.
    """

    began: float
    connection: str = ""
    shown: float | None = None
    transaction: str = ""

    @property
    def names(self) -> set[str]:
        """The names by which a transaction is recognised in the next query."""
        own = f"{self.connection}/{self.shown}" if self.connection else ""
        return {self.transaction, own} - {""} if self.shown is not None else set()


@dataclass
class TransactionTracker:
    """State of one server's open transactions between queries of them, shared by all captures of the server.

    Attributes:
        at: Monotonic time of the last query.
        starts: When each transaction began, by name.
        nameless: Names of those transactions that had no number.
        statements: When sessions without a transaction began their statements, by connection.
        replays: The server was seen to apply writes of another server, and may do so again.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = -math.inf
    moment: TransactionSnapshot = TransactionSnapshot(0.0, None)
    starts: dict[str, float] = field(default_factory=dict)
    nameless: set[str] = field(default_factory=set)
    statements: dict[str, float] = field(default_factory=dict)
    replays: bool = False

    def taken(self, now: float, sessions: Collection[ServerSession]) -> TransactionSnapshot:
        """Update the state with the sessions of a query, and return its snapshot."""
        present = {name for session in sessions for name in session.names}
        # Any of those that have ended may be prepared now.
        ended_starts = [*self.statements.values(), *(self.starts[name] for name in self.nameless - present)]
        starts = {session: min([session.began, *self._known(session, ended_starts)]) for session in sessions}
        self.starts = {name: start for session, start in starts.items() for name in session.names}
        self.nameless = {name for session in sessions if not session.transaction for name in session.names}
        self.statements = {session.connection: start for session, start in starts.items() if session.shown is None}
        return TransactionSnapshot(now, min(starts.values(), default=None))

    def _known(self, session: ServerSession, ended_starts: list[float]) -> list[float]:
        starts = [self.starts[name] for name in session.names if name in self.starts]
        if not session.connection:
            return starts or ended_starts
        # Its statement may have waited for a lock before it touched a row.
        statement_starts = [] if session.shown is None else [self.statements.get(session.connection, session.began)]
        return starts + statement_starts
