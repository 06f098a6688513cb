"""Sessions that change a history's table: transactions that overlap, wait for each other, and end in any order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.chaos.histories.servers import ERRORS, ISOLATIONS, Server, begin, execute
from tests.chaos.histories.tables import History

# Seconds for which a transaction is held, and polls meanwhile.
SHORTEST, LONGEST, POLLS = 3.5, 18.0, 6
Operation = Callable[[Any], int]


class Writer(threading.Thread):
    """One session. done: operations that it did, of committed and other transactions; late: whether one of its
    transactions was open for longer than the capture was told; skew: how far its clock is behind, seconds; polls: tells
    how often the capture has polled."""

    def __init__(
        self, history: History, server: Server, number: int, fresh: threading.Lock, polls: Callable[[], int] = int
    ) -> None:
        super().__init__(daemon=True, name=f"{history.name}-{number}")
        self.history, self.server, self._fresh = history, server, fresh
        self._polls = polls
        self.chance = random.Random(f"{history.seed}/{number}")
        self.over = threading.Event()
        self.done, self.late = 0, False
        self.skew = self.chance.choice((0.0, 0.6, -0.6))
        self._isolation = self.chance.choice(ISOLATIONS)
        self._number, self._count, self._added = number, 0, 0
        operations: list[tuple[int, Operation]] = [
            (6, self.update), (4, self.insert), (2, self.upsert), (1, self.copied), (2, self.every), (2, self.settle),
        ]  # fmt: skip
        if history.deleted:
            operations.append((3, self.deleted))
        if history.removes:
            operations += [(2, self.removed), (1, self.moved)]
        if history.removes and history.dialect.name != "postgres":
            # It may put `A` where `a` was.
            operations.append((2, self.replaced))
        if "alter" in history.features and number == 0:
            operations.append((1, self.altered))
        if history.stale:
            operations.append((1, self.label))
        self._operations = [one for weight, one in operations for _ in range(weight)]

    def run(self) -> None:
        while not self.over.is_set():
            # The database goes and comes: a transaction that is cut is none.
            with suppress(*ERRORS):
                connection = self.server.open()
                try:
                    while not self.over.wait(self.chance.choice((0.0, 0.05, 0.3))):
                        self._transaction(connection)
                except ERRORS:
                    pass
                finally:
                    connection.close()
            self.over.wait(0.5)

    # A transaction

    def _transaction(self, connection: Any) -> None:
        if self.chance.random() < 0.2:
            self._operate(connection)
            return
        shared = self.history.long and "two-phase" in self.history.features and self.chance.random() < 0.2
        name = f"{self.history.name}-{self._number}-{self._count}"
        self._count += 1
        if shared and self.server.engine == "mariadb":
            execute(connection, f"XA START '{name}'")
        else:
            begin(self.server, connection, self._isolation)
        began, limit = time.monotonic(), self._limit()
        # Longer than the overlap, with little locked: meanwhile others go on, and may hide what it did.
        held = self.history.long and self.server.engine != "sqlite" and self.chance.random() < 0.3
        try:
            if held:
                # Not every key has a row.
                any(self._operate(connection, self.settle) for _ in range(5))
                self._hold()
            for _ in range(0 if held else self.chance.choice((1, 1, 2, 4))):
                self._step(connection)
                if time.monotonic() - began > limit:
                    break
                time.sleep(self.chance.choice((0, 0, 0.02, 0.2, self.chance.uniform(0, limit / 2))))
        except BaseException:
            with suppress(*ERRORS):
                if shared and self.server.engine == "mariadb":
                    execute(connection, f"XA END '{name}'")
                    execute(connection, f"XA ROLLBACK '{name}'")
                else:
                    execute(connection, "ROLLBACK")
            raise
        self._end(connection, name, shared=shared)
        if self.server.engine == "sqlite" and time.monotonic() - began > self.history.delay + 1:
            self.late = True

    def _hold(self) -> None:
        """Wait for longer than the overlap, and until the capture has polled often enough to go on without this."""
        began, polls = time.monotonic(), self._polls()
        while (took := time.monotonic() - began) < LONGEST and not self.over.wait(0.3):
            if took > SHORTEST and not polls <= self._polls() < polls + POLLS:
                return

    def _limit(self) -> float:
        """Seconds after which a transaction ends."""
        if self.server.engine == "sqlite" or not self.history.long:
            return self.chance.choice((0.02, 0.1, 0.3))
        return self.chance.choice((0.1, 0.3, 1.0, 1.0, 4.0, 7.0))

    def _step(self, connection: Any) -> None:
        part = self.server.engine != "sqlite" and self.chance.random() < 0.15
        if part:
            execute(connection, "SAVEPOINT here")
        try:
            self._operate(connection)
        except ERRORS:
            if not part:
                raise
        if part and self.chance.random() < 0.6:
            execute(connection, "ROLLBACK TO SAVEPOINT here")

    def _end(self, connection: Any, name: str, *, shared: bool) -> None:
        good = self.chance.random() < 0.85
        if not shared or self.server.engine == "sqlite":
            execute(connection, "COMMIT" if good else "ROLLBACK")
        elif self.server.engine == "postgres":
            execute(connection, f"PREPARE TRANSACTION '{name}'")
            time.sleep(self.chance.uniform(0, 1))
            execute(connection, f"{'COMMIT' if good else 'ROLLBACK'} PREPARED '{name}'")
        elif self.server.engine == "mariadb":
            execute(connection, f"XA END '{name}'")
            execute(connection, f"XA PREPARE '{name}'")
            time.sleep(self.chance.uniform(0, 1))
            execute(connection, f"XA {'COMMIT' if good else 'ROLLBACK'} '{name}'")
        else:
            execute(connection, "COMMIT" if good else "ROLLBACK")

    def _operate(self, connection: Any, operation: Operation | None = None) -> int:
        if self.history.cursor.auto and self.skew:
            # What CURRENT_TIMESTAMP says in the next statement.
            execute(connection, f"SET timestamp = {time.time() - self.skew:.6f}")
        try:
            changed = (operation or self.chance.choice(self._operations))(connection)
        except ERRORS as e:
            # A key that is there already is no reason to end; what else went wrong is.
            if "uplicate" in str(e) or "UNIQUE" in str(e):
                if self.server.engine == "postgres":
                    raise
                return 0
            raise
        self.done += changed > 0
        return changed

    # Operations; each gives how many rows it changed

    def update(self, connection: Any) -> int:
        return execute(connection, self._update(self._where(self._key())))

    def every(self, connection: Any) -> int:
        return execute(connection, self._update(f"grade % 5 = {self.chance.randrange(5)} AND settled = 0"))

    def settle(self, connection: Any) -> int:
        """A last change: what a capture lost of such a row is not brought in by another change soon."""
        return execute(connection, self._update(self._where(self._key()), [*self._changes(), ("settled", "1")]))

    def insert(self, connection: Any) -> int:
        count = self.chance.choice((1, 1, 1, 3, 8))
        with self._alone():
            return sum(self._one(connection, f"INSERT INTO {self._into()} VALUES {self._row()}") for _ in range(count))

    def _one(self, connection: Any, statement: str) -> int:
        if self.server.engine == "postgres":
            return execute(connection, f"{statement} ON CONFLICT DO NOTHING")
        if self.server.engine == "sqlite":
            return execute(connection, statement.replace("INSERT", "INSERT OR IGNORE", 1))
        try:
            return execute(connection, statement)
        except ERRORS as e:
            if "uplicate" in str(e):
                return 0
            raise

    def upsert(self, connection: Any) -> int:
        assignments = [*self._changes(f"{self.history.table}."), ("settled", "0")]
        changes = ", ".join(f"{name} = {sql}" for name, sql in assignments)
        if self.server.engine in ("mariadb", "mysql"):
            behind = f"ON DUPLICATE KEY UPDATE {changes}"
        else:
            behind = f"ON CONFLICT ({', '.join(self._keys())}) DO UPDATE SET {changes}"
        with self._alone():
            return execute(connection, f"INSERT INTO {self._into()} VALUES {self._row()} {behind}")

    def replaced(self, connection: Any) -> int:
        with self._alone():
            return execute(connection, f"REPLACE INTO {self._into()} VALUES {self._row()}")

    def copied(self, connection: Any) -> int:
        """INSERT ... SELECT of one row's values under another key."""
        h = self.history
        names = [*self._keys(), "version", "grade", "txt", "gone", *(h.quote(c.name) for c in h.values)]
        key = [self._typed(value, c.kind.ddl) for value, c in zip(self._key(), h.key, strict=True)]
        columns = [*key, str(_version()), "grade", "txt", "gone", *(h.quote(c.name) for c in h.values)]
        if not h.cursor.auto:
            names.append(h.quote(h.cursor_name))
            columns.append(self._typed(self._drawn(), h.cursor.ddl))
        source = f"SELECT {', '.join(columns)} FROM {h.table} WHERE {self._where(self._key())}"
        with self._alone():
            return self._one(connection, f"INSERT INTO {h.table} ({', '.join(names)}) {source}")

    def deleted(self, connection: Any) -> int:
        flag = "true" if self.server.engine == "postgres" else "1"
        changes = [("gone", flag), *self._changed()]
        return execute(connection, self._update(self._where(self._key()), changes))

    def removed(self, connection: Any) -> int:
        return execute(connection, f"DELETE FROM {self.history.table} WHERE {self._where(self._key())}")

    def moved(self, connection: Any) -> int:
        """A row is given another key."""
        with self._alone():
            changes = [*zip(self._keys(), self._key(), strict=True), ("version", str(_version())), *self._cursor()]
            return execute(connection, self._update(self._where(self._key()), changes))

    def label(self, connection: Any) -> int:
        part = self.chance.randint(-6, 6)
        table = self.history.quote(self.history.name + "_d")
        return execute(connection, f"UPDATE {table} SET label = 'label {self.chance.random():.6f}' WHERE part = {part}")

    def altered(self, connection: Any) -> int:
        """Another column at the end, with a value of its own in all rows. It ends the transaction."""
        h = self.history
        if self._count < 3 or self._added > 2 or self.server.engine == "sqlite":
            return 0
        self._added += 1
        execute(connection, "COMMIT")
        execute(connection, f"ALTER TABLE {h.table} ADD COLUMN added{self._added} INTEGER DEFAULT {self._added}")
        return 1

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one session at a time gives new rows their version. TimeoutError if another waits in it for this one."""
        if not self._fresh.acquire(timeout=3):
            raise TimeoutError
        try:
            yield
        finally:
            self._fresh.release()

    # SQL

    def _keys(self) -> list[str]:
        return [self.history.quote(c.name) for c in self.history.key]

    def _key(self) -> tuple[str, ...]:
        return self.chance.choice(self.history.pool)

    def _where(self, key: tuple[str, ...]) -> str:
        """The row of a key, if it is not settled."""
        each = [f"{name} = {value}" for name, value in zip(self._keys(), key, strict=True)]
        return " AND ".join([*each, "settled = 0"])

    def _update(self, where: str, changes: list[tuple[str, str]] | None = None) -> str:
        pairs = self._changes() if changes is None else changes
        return f"UPDATE {self.history.table} SET {', '.join(f'{name} = {sql}' for name, sql in pairs)} WHERE {where}"

    def _changes(self, at: str = "") -> list[tuple[str, str]]:
        h = self.history
        changes = [("grade", str(self._grade())), ("txt", self._txt())]
        if h.deleted and self.chance.random() < 0.5:
            changes.append(("gone", "false" if self.server.engine == "postgres" else "0"))
        changes += [(h.quote(c.name), self._value(c.kind.literal)) for c in h.values]
        return [*self.chance.sample(changes, self.chance.randint(1, len(changes))), *self._changed(at)]

    def _changed(self, at: str = "") -> list[tuple[str, str]]:
        return [("version", f"{at}version + 1"), *self._cursor()]

    def _cursor(self) -> list[tuple[str, str]]:
        h = self.history
        return [] if h.cursor.auto else [(h.quote(h.cursor_name), self._drawn())]

    def _drawn(self) -> str:
        cursor, seldom = self.history.cursor, self.chance.random()
        if seldom < 0.02:
            return "NULL"
        if seldom < 0.03 and cursor.ahead:
            return cursor.ahead
        return cursor.drawn.format(skew=self.skew).replace("'-0.0 seconds'", "'0 seconds'").replace("'--", "'+")

    def _into(self) -> str:
        h = self.history
        names = [*self._keys(), "version", "grade", "txt", "gone", *(h.quote(c.name) for c in h.values)]
        if not h.cursor.auto:
            names.append(h.quote(h.cursor_name))
        return f"{h.table} ({', '.join(names)})"

    def _row(self) -> str:
        h = self.history
        values = [*self._key(), str(_version()), str(self._grade()), self._txt()]
        values.append("false" if self.server.engine == "postgres" else "0")
        values += [self._value(c.kind.literal) for c in h.values]
        if not h.cursor.auto:
            values.append(self._drawn())
        return f"({', '.join(values)})"

    def _typed(self, value: str, kind: str) -> str:
        """In a SELECT, PostgreSQL takes what is quoted for text."""
        return f"CAST({value} AS {kind.partition(' COLLATE')[0]})" if self.server.engine == "postgres" else value

    def _grade(self) -> int:
        return self.chance.randint(0, 100)

    def _txt(self) -> str:
        return self.chance.choice(("NULL", "''", "'a'", "'Ab c'", "'a b'", "'ß é'", "'x:y'"))

    def _value(self, literal: Callable[[random.Random], str]) -> str:
        return "NULL" if self.chance.random() < 0.15 else literal(self.chance)


def _version() -> int:
    """Grows from one row of a key to the next: microseconds, which no row is changed as often as pass meanwhile."""
    return time.time_ns() // 1000
