"""What a reconcile has found and repaired."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Reasons of a reconcile that do not explain differences.
SCHEDULED, REQUESTED = "it is time", "asked for"
UNEXPLAINED = ("", SCHEDULED, REQUESTED)


@dataclass(frozen=True)
class Drift:
    """Rows that a reconcile found to differ, and repaired.

    Attributes:
        missing: Rows that are in the table only.
        differing: Rows whose record in the topic has another value.
        extra: Keys that are in the topic only.
        rows: Rows compared.
        ended: When it ended, epoch seconds of this machine; 0 if it has not.
        why: Why it was started.
    """

    missing: int = 0
    differing: int = 0
    extra: int = 0
    rows: int = 0
    ended: float = 0.0
    why: str = ""

    @property
    def repaired(self) -> int:
        """The number of records that were repaired."""
        return self.missing + self.differing + self.extra

    @property
    def explained(self) -> bool:
        """Whether the reason of the reconcile explains the differences."""
        return self.why not in UNEXPLAINED

    def plus(self, missing: int = 0, differing: int = 0, extra: int = 0) -> Drift:
        """The drift after further records were repaired."""
        return replace(
            self, missing=self.missing + missing, differing=self.differing + differing, extra=self.extra + extra
        )
