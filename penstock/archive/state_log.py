"""The states of an archive: which one counts, and how a writer learns that it is no longer the one.

S3's client here has no conditional writes; two rules are enough without. Who opens an archive first puts its claim, a
name greater than all there are, and then looks for the greatest state, which it goes on from. Who writes puts its state
first, and then looks for claims. So of a writer and whoever opens behind it at least one sees the other: either the
state is found and goes on, or the writer finds the claim, and says LeaseLost before its batch counts as written. What
it has put is then named by nobody, and the batch comes again by the newer one. That S3 shows in its lists what was put
before is all that this asks of it, as it does since 2020.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from penstock.archive.layout import CLAIMS, STATES, ArchiveState, claim_number, claim_of_name
from penstock.errors import LeaseLost, SinkError, Wait
from penstock.object_store.bucket import Bucket, ObjectNotFound

# A state that was just written is not read by those who found it in a list: so many are left for them.
KEPT_STATES = 3
MAX_READ_ATTEMPTS = 5


def latest_state(store: Bucket) -> ArchiveState:
    """The state that counts; an empty one of an archive that has none."""
    for _ in range(MAX_READ_ATTEMPTS):
        if not (found := store.list_objects(STATES)):
            return ArchiveState()
        name = found[-1].key
        try:
            return ArchiveState.read(store.get(name), store.url(name))
        except ObjectNotFound:
            # Meanwhile a newer one was written, and this one removed.
            continue
    raise Wait(f"the state of {store.url('')} changes faster than it is read", seconds=1.0)


class StateLog:
    """The archive's state as one writer owns it. `put` raises LeaseLost if there is a newer writer."""

    def __init__(self, store: Bucket) -> None:
        self._store = store
        self._claim = self._claimed()
        found = latest_state(store)
        self.state = replace(found, claim=self._claim, number=0)
        self._written = False

    @property
    def claim(self) -> str:
        return self._claim

    def put(self, state: ArchiveState) -> None:
        """Let a state count; it is that of a batch only if nothing is raised."""
        if not claim_number(self._claim):
            raise SinkError("an archive is written to without a claim", got=self._claim)
        self._store.put(state.name, state.write())
        self.check()
        self.state = state
        self._tidy()

    def check(self) -> None:
        """LeaseLost if somebody has opened the archive behind this writer."""
        newest = max((claim_of_name(o.key) for o in self._store.list_objects(CLAIMS)), default="")
        if newest > self._claim:
            raise LeaseLost(
                f"the archive {self._store.url('')} has a newer writer", got=f"{newest}, and this is {self._claim}"
            )

    def _claimed(self) -> str:
        known = [*self._store.list_objects(CLAIMS), *self._store.list_objects(STATES)]
        number = max((claim_number(claim_of_name(o.key)) for o in known), default=0) + 1
        claim = f"{number:08}-{secrets.token_hex(4)}"
        self._store.put(f"{CLAIMS}/{claim}", claim.encode())
        return claim

    def _tidy(self) -> None:
        """Remove what a newer state of this writer makes useless: nobody goes on from it any more."""
        old = self.state.number - KEPT_STATES
        if not self._written:
            self._written = True
            mine = (self.state.name, f"{CLAIMS}/{self._claim}")
            for folder in (STATES, CLAIMS):
                for one in self._store.list_objects(folder):
                    if claim_of_name(one.key.removesuffix(".json.gz")) < self._claim and one.key not in mine:
                        self._store.delete(one.key)
        elif old >= 1:
            self._store.delete(replace(self.state, number=old).name)
