"""Records of a source that give no row: their number, examples and reasons."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

# Records listed in the log and in the result of a run, and characters of their reasons.
MAX_LOGGED, MAX_NAMED, MAX_CHARS = 100, 3, 200


@dataclass
class SkippedRecords:
    """The number of skipped records, and location and reason of the first ones."""

    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    def add(self, location: str, reason: str) -> None:
        """Count a record, and log its location and the reason."""
        self.add_many(1, location, reason)
        if self.count <= MAX_LOGGED:
            # Begins with no text, as each would be an alert of its own.
            log.warning("(%d) %s is left out: %s", self.count, location, reason[:MAX_CHARS])

    def add_many(self, count: int, location: str, reason: str) -> None:
        """Count records with one example."""
        self.count += count
        if len(self.examples) < MAX_NAMED:
            self.examples.append((location[:MAX_CHARS], reason[:MAX_CHARS]))

    def __add__(self, other: SkippedRecords) -> SkippedRecords:
        return SkippedRecords(self.count + other.count, [*self.examples, *other.examples][:MAX_NAMED])

    @property
    def summary(self) -> str:
        """The suffix of a run's result; empty if there are none."""
        if not self.count:
            return ""
        examples = "; ".join(f"{location}: {reason}" for location, reason in self.examples)
        more = "; ..." if self.count > MAX_NAMED else ""
        return f"; {self.count:,} records of the source are left out: {examples}{more}"

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> SkippedRecords:
        """Load a file of `save`; empty if there is none."""
        if not path.exists():
            return cls()
        fields = json.loads(path.read_text())
        return cls(fields["count"], [(location, reason) for location, reason in fields["examples"]])
