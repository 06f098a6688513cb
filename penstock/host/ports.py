"""Ports of this host's loopback address."""

from __future__ import annotations

import atexit
import contextlib
import random
import socket

import psutil

from penstock.errors import HostError

PORTS = range(20000, 32000)
"""Below those that are given to outgoing connections."""
_reserved = contextlib.ExitStack()
"""The reservations of the ports that `free_port` gave, held until this process ends."""
atexit.register(_reserved.close)


def listens(port: int) -> bool:
    """Whether something on this host accepts connections on a loopback port."""
    return accepts(f"127.0.0.1:{port}")


def accepts(address: str) -> bool:
    """Whether something accepts connections at `host:port`, within a second."""
    host, _, port = address.strip().rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
        return True
    return False


def free_port(count: int = 1) -> int:
    """A free loopback port out of `PORTS`, the first of `count` free ones in a row.

    Each port is given once, in this process and in those that run meanwhile: its server may start much later.
    """
    for _ in range(200):
        first = random.choice(PORTS)
        wanted = range(first, first + count)
        with contextlib.ExitStack() as reserved, contextlib.suppress(OSError):
            for port in wanted:
                reserved.enter_context(_reservation(port))
            with contextlib.ExitStack() as bound:
                for port in wanted:
                    bound.enter_context(_bound(port))
            _reserved.push(reserved.pop_all())
            return first
    raise HostError(f"no {count} free ports in a row were found")


def _reservation(port: int) -> socket.socket:
    """A UDP socket: no other process binds it as long as this one has it, and a server's TCP socket can be bound."""
    reservation = socket.socket(type=socket.SOCK_DGRAM)
    try:
        reservation.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        reservation.close()
        raise
    return reservation


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound


def port_holder(port: int) -> str | None:
    """The process that uses a port and its folder, as far as this user may know; None if the port is free.

    A port of the range that the system gives to outgoing connections may be in use by one.
    """
    try:
        with _bound(port):
            return None
    except OSError:
        pass
    with contextlib.suppress(psutil.Error):
        users = [one for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == port]
        for user in sorted(users, key=lambda one: one.status != psutil.CONN_LISTEN):
            how = "" if user.status == psutil.CONN_LISTEN else "an outgoing connection of "
            with contextlib.suppress(psutil.Error):
                if user.pid is not None:
                    holder = psutil.Process(user.pid)
                    return f"{how}pid {holder.pid} ({holder.name()}) in {holder.cwd()}"
            return f"{how}a process this user may not see"
    return "a process this user may not see"
