"""Which cases of tests/streams `make test` runs."""

from __future__ import annotations

# Steps of a case that is tried in every way: other ways run its streams again, or rebuild their state behind each step.
MAX_QUICK_STEPS = 2
