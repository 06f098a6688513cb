"""A replacement as the control database has it, for tests of what is shown of it."""

from __future__ import annotations

from penstock.control import ReplacementRow
from penstock.supervision.replacement_options import replacement_options

NOW = 1_800_000_000_000
FIGURES = {
    "records": 1500, "total": 6000, "rate": 250.0, "remaining_ms": 18_000, "lag": 4500, "compared": 12, "equal": 10,
    "different": 1, "only_new": 1, "only_running": 0, "examples": [{"key": "secret"}], "pause_ms": None,
}  # fmt: skip
ROW = ReplacementRow(
    "r1", "bundles", "metrics", digest="new", previous="old", state="following", why="",
    options=replacement_options(cut="manual"), figures=FIGURES, actor="ann", requested_at=NOW - 60_000,
    reported_at=NOW - 2_000, cut_requested_at=None, cut_at=None, ended_at=None, release_seq=None,
)  # fmt: skip
