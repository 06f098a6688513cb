"""Leases: the right of a driver to run a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy import delete, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, insert_if_new, rows
from penstock.control.rows import Lease
from penstock.errors import LeaseHeld, LeaseLost


class LeaseRepository(ControlDatabase):
    """One lease for each stream and capture, by the database's clock."""

    def take_lease(self, name: str, holder: str, ttl: float, *, dead: Sequence[str] = ()) -> Lease:
        """Take the lease of a stream if it is free, has expired, or its holder is dead.

        Args:
            name: The stream or capture.
            holder: The driver's incarnation.
            ttl: Seconds until the lease expires.
            dead: Incarnations whose processes have certainly ended.

        Raises:
            LeaseHeld: Another driver holds it.
        """
        with self.begin() as c:
            values = {"holder": holder, "expires_at": s.now_ms() + int(ttl * 1000)}
            free = (s.lease.c.expires_at < s.now_ms()) | s.lease.c.holder.in_([holder, *dead])
            won = c.execute(
                update(s.lease).where(s.lease.c.name == name, free).values(**values, epoch=s.lease.c.epoch + 1)
            ).rowcount
            if not won:
                won = insert_if_new(c, s.lease, name=name, epoch=1, **values)
            [lease] = rows(Lease, c.execute(select(s.lease).where(s.lease.c.name == name)).mappings())
        if not won:
            raise LeaseHeld(
                f"another driver holds the lease of stream {name}",
                holder=lease.holder,
                got=f"driver {lease.holder}, until {datetime.fromtimestamp(lease.expires_at / 1000, UTC):%H:%M:%S} UTC",
                hint="nothing; if that driver is dead, this one takes over when the lease expires",
            )
        return lease

    def renew_leases(self, names: Iterable[str], holder: str, ttl: float) -> None:
        """Renew leases.

        Raises:
            LeaseLost: Another driver holds one of them.
        """
        required = list(names)
        if not required:
            return
        with self.begin() as c:
            mine = s.lease.c.name.in_(required) & (s.lease.c.holder == holder)
            c.execute(update(s.lease).where(mine).values(expires_at=s.now_ms() + int(ttl * 1000)))
            renewed = set(c.execute(select(s.lease.c.name).where(mine)).scalars())
        if lost := sorted(set(required) - renewed):
            raise LeaseLost("another driver took over", got=", ".join(lost), hint="this driver ends by itself")

    def drop_leases(self, names: Iterable[str], holder: str) -> None:
        with self.begin() as c:
            c.execute(delete(s.lease).where(s.lease.c.name.in_(list(names)), s.lease.c.holder == holder))

    def leases(self) -> dict[str, Lease]:
        with self.begin() as c:
            return {lease.name: lease for lease in rows(Lease, c.execute(select(s.lease)).mappings())}
