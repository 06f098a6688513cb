"""The control database: desired state, leases, progress, who did what."""

from penstock.control.client import Control, connect
from penstock.control.rows import (
    Actor,
    AppRow,
    Desired,
    DriverRow,
    EndCode,
    Fault,
    FaultRow,
    Lease,
    ProgressRow,
    ReleaseRow,
    ReplacementRow,
    ReplacementState,
    StreamProgress,
)

__all__ = [
    "Actor",
    "AppRow",
    "Control",
    "Desired",
    "DriverRow",
    "EndCode",
    "Fault",
    "FaultRow",
    "Lease",
    "ProgressRow",
    "ReleaseRow",
    "ReplacementRow",
    "ReplacementState",
    "StreamProgress",
    "connect",
]
