"""What the states of a replacement mean, and what to do."""

from __future__ import annotations

from penstock.control import ReplacementState

REPLACEMENT_STATES: dict[ReplacementState, str] = {
    "queued": "It waits for room on its machine.",
    "building": "The new version reads its backlog; the running version goes on.",
    "following": "The new version has caught up, and is compared with the running version.",
    "cutting": "The new version takes the place of the running version.",
    "cut": "The new version writes. The state and the code of the version before it are kept.",
    "confirmed": "The new version writes, and an operator has confirmed it, or another replacement followed.",
    "cancelled": "An operator ended it; the running version goes on.",
    "failed": "It is undone; the running version goes on.",
}
# The same sentences as in docs/operations.md.
REPLACEMENT_REMEDIES: dict[ReplacementState, str] = {
    "queued": "wait, or free what the reason names",
    "building": "wait",
    "following": "wait; with `--cut manual` read the comparison, then `penstock replacements cut NAME`",
    "cutting": "wait",
    "cut": "check the output, then `penstock replacements confirm NAME`",
    "confirmed": "",
    "cancelled": "",
    "failed": "correct what the reason names, then replace it again",
}
