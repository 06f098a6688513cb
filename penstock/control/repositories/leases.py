"""Leases: which driver may write under a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, insert_if_new, row_of, rows
from penstock.control.rows import Lease
from penstock.errors import LeaseHeld, LeaseLost


class LeaseRepository(ControlDatabase):
    """One lease for each stream and capture, by the database's clock."""

    def take_lease(self, name: str, holder: str, ttl: float, *, dead: Sequence[str] = ()) -> Lease:
        """Take the lease of a stream's checkpoint, if it is free, run out, or its holder is known to be dead.

        ttl: seconds. dead: incarnations whose processes are gone for certain. LeaseHeld if another has it.
        """
        with self.begin() as c:
            values = {"holder": holder, "expires_at": s.now_ms() + int(ttl * 1000)}
            free = (s.lease.c.expires_at < s.now_ms()) | s.lease.c.holder.in_([holder, *dead])
            won = c.execute(
                update(s.lease).where(s.lease.c.name == name, free).values(**values, epoch=s.lease.c.epoch + 1)
            ).rowcount
            if not won:
                won = insert_if_new(c, s.lease, name=name, epoch=1, **values)
            row = c.execute(select(s.lease).where(s.lease.c.name == name)).mappings().one()
        held = row_of(Lease, row)
        if not won:
            raise LeaseHeld(
                f"another driver holds the lease of stream {name}",
                holder=held.holder,
                got=f"driver {held.holder}, until {held.expires_at} (epoch ms)",
                hint="nothing, if that driver runs; it is taken over by itself once the lease runs out",
            )
        return held

    def renew_leases(self, names: Iterable[str], holder: str, ttl: float) -> None:
        """Renew leases; LeaseLost if any of them is no longer the holder's."""
        wanted = list(names)
        if not wanted:
            return
        with self.begin() as c:
            mine = s.lease.c.name.in_(wanted) & (s.lease.c.holder == holder)
            c.execute(update(s.lease).where(mine).values(expires_at=s.now_ms() + int(ttl * 1000)))
            kept = set(c.execute(select(s.lease.c.name).where(mine)).scalars())
        if lost := sorted(set(wanted) - kept):
            raise LeaseLost("another driver took over", got=", ".join(lost), hint="this driver ends by itself")

    def drop_leases(self, names: Iterable[str], holder: str) -> None:
        with self.begin() as c:
            c.execute(delete(s.lease).where(s.lease.c.name.in_(list(names)), s.lease.c.holder == holder))

    def leases(self) -> dict[str, Lease]:
        with self.begin() as c:
            return {lease.name: lease for lease in rows(Lease, c.execute(select(s.lease)).mappings())}
