"""What instances of the views and those who ask them have in common; the meter takes it too, and is to stay small."""

from __future__ import annotations

from penstock.errors import PenstockError

# Headers. Who forwards says who it is; a deadline is milliseconds from now; a lag is records.
FORWARDED, DEADLINE, LAG = "penstock-forwarded", "penstock-deadline-ms", "penstock-lag"
# An instance that has not been heard of for so long, by the database's clock, is asked only where no other has it.
SILENT_MS = 5_000


class PeerUnavailable(PenstockError):
    """An instance did not answer, or cannot for now."""
