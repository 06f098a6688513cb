"""Embedded servers are those of one home: all homes use the same ports by default, and another project may have topics,
tables and apps of the same names."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.host import ports, process
from penstock.settings import settings


def refuse_another_home(server: str, port: int, variable: str, error: type[PenstockError]) -> None:
    """Refuse a port of this machine that a process listens on which this home has not started.

    A port on which nothing listens is not refused: the server of this home may start again.

    Args:
        server: What should listen there, for the message.
        port: The port of the embedded server.
        variable: The variable that chooses the port.
        error: The error to raise, which callers expect of this server.
    """
    s = settings()
    if any(port in record.ports.values() and record.process() for record in process.read_all(s.home / "run")):
        return
    if not ports.listens(port):
        return
    raise error(
        f"the {server} at port {port} is that of another home, or no server of Penstock",
        got=f"{ports.port_holder(port)}; the home of {s.project} is {s.home}",
        hint=f"work in the folder of its project; or stop it, or set {variable} and the other ports for one of both, "
        "and `penstock up`",
    )
