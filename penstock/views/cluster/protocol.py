"""What instances of the views and their clients share. The meter imports it too, so it must stay small."""

from __future__ import annotations

from penstock.errors import PenstockError

# Headers: the name of the forwarding instance, the deadline in milliseconds from now, the lag in records.
FORWARDED, DEADLINE, LAG = "penstock-forwarded", "penstock-deadline-ms", "penstock-lag"
# An instance that has not been heard of for so long, by the database's clock, is asked only where no other has it.
SILENT_MS = 5_000


class PeerUnavailable(PenstockError):
    """An instance did not answer, or cannot for now."""
