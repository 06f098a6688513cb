"""The control database: desired state, leases, progress, who did what."""

from penstock.control.api import Control, connect
from penstock.control.rows import Actor, AppRow, Desired, DriverRow, Lease, ProgressRow, Reach

__all__ = ["Actor", "AppRow", "Control", "Desired", "DriverRow", "Lease", "ProgressRow", "Reach", "connect"]
