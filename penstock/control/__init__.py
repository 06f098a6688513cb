"""The control database: desired state, leases, progress, who did what."""

from penstock.control.api import Actor, Control, DriverRow, Lease, ProgressRow, connect

__all__ = ["Actor", "Control", "DriverRow", "Lease", "ProgressRow", "connect"]
