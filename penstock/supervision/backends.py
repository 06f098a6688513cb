"""Whether a driver is alive, and how it is ended: by its session on this host, or by the master of its cluster."""

from __future__ import annotations

from penstock.control import DriverRow
from penstock.settings import settings
from penstock.supervision import cluster_drivers


def alive(d: DriverRow, now: int | None = None, *, wait: bool = True) -> bool | None:
    """Whether any process of a driver is alive; None if that is unknown.

    Args:
        now: The database's clock; the master is not asked about a driver that has reported recently.
        wait: Whether to wait for the answer of a master; otherwise its last answer is used.
    """
    if d.submission is None:
        return d.session.alive()
    silence = None if now is None else (now - d.alive_at) / 1000
    if silence is not None and abs(silence) < _silent():
        return True
    status = cluster_drivers.driver_state(d, wait=wait)
    if status.ended:
        return False
    if status.lost:
        # Its processes may work until they see that another driver has the lease.
        return False if silence is not None and silence > settings().lease_ttl else None
    return True if status.state else None


def wait_reason(d: DriverRow, now: int, *, wait: bool = True) -> str | None:
    """What a cluster's driver that has not begun waits for; None for any other, and if it waits for nothing."""
    if d.submission is None or d.pid is not None or d.state == "ended":
        return None
    if abs(now - d.launched_at) / 1000 < _silent():
        return None
    return cluster_drivers.driver_state(d, wait=wait).wait_reason(d)


def _silent() -> float:
    """Seconds after which a driver should have reported: it does so with its progress, and four times in its lease."""
    s = settings()
    return 3 * min(s.progress_every, s.lease_ttl / 4)


def leader_gone(d: DriverRow) -> bool:
    """Whether only what is of no use is left of a driver. One of a cluster's ends with its JVM."""
    return d.submission is None and d.session.leader_gone()


def terminate(d: DriverRow) -> bool:
    """Ask a driver to drain and leave; one that a cluster runs elsewhere cannot be asked and is killed."""
    if d.session.terminate(d.incarnation):
        return True
    return d.submission is not None and cluster_drivers.kill(d).state != ""


def kill(d: DriverRow) -> bool:
    """End a driver at once; True when nothing of it is left. False also where that cannot be known."""
    return d.session.kill() if d.submission is None else cluster_drivers.kill(d).ended


def uncertainty(d: DriverRow) -> str:
    """Why it is unknown whether a cluster's driver still has processes; empty for others."""
    if d.submission is None:
        return ""
    status = cluster_drivers.driver_state(d)
    return f"{d.submission} may be left: {status.why or 'its master lost its worker'}"
