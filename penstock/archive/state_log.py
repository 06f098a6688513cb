"""The states of an archive, and the fencing of its writers.

The S3 client has no conditional writes. Two rules replace them:

1. A new writer puts its claim, whose name is greater than all others, and then continues from the greatest state.
2. A writer that commits puts its state, and then lists the claims. A greater claim is LeaseLost.

So of two writers at least one sees the other: either the newer one continues from the state, or the older one sees the
claim and raises LeaseLost before its batch counts as written. Then its state is not referenced, and the newer writer
gets the batch again. This requires only that S3 lists an object once it is put, which holds since 2020.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from penstock.archive.layout import CLAIMS, STATES, ArchiveState, claim_number, claim_of_name
from penstock.errors import LeaseLost, Wait
from penstock.object_store.bucket import Bucket, ObjectNotFound

# Readers list the states before they read one, so the last states are kept.
KEPT_STATES = 3
MAX_READ_ATTEMPTS = 5


def latest_state(store: Bucket) -> ArchiveState:
    """The valid state; an empty one if the archive has none.

    Raises:
        Wait: The state changes faster than it can be read.
    """
    for _ in range(MAX_READ_ATTEMPTS):
        if not (states := store.list_objects(STATES)):
            return ArchiveState()
        name = states[-1].key
        try:
            return ArchiveState.read(store.get(name), store.url(name))
        except ObjectNotFound:
            # A newer one was written in the meantime, and this one deleted.
            continue
    raise Wait(f"the state of {store.url('')} changes faster than it is read", seconds=1.0)


class StateLog:
    """The states of one writer. Opening it claims the archive."""

    def __init__(self, store: Bucket) -> None:
        self._store = store
        self._claim = self._put_claim()
        latest = latest_state(store)
        self.state = replace(latest, claim=self._claim, number=0)
        self._deleted_others = False

    @property
    def claim(self) -> str:
        return self._claim

    def put(self, state: ArchiveState) -> None:
        """Make a state the valid one.

        Raises:
            LeaseLost: There is a newer writer.
        """
        self._store.put(state.name, state.write())
        newest = max((claim_of_name(o.key) for o in self._store.list_objects(CLAIMS)), default="")
        if newest > self._claim:
            raise LeaseLost(
                f"the archive {self._store.url('')} has a newer writer", got=f"{newest}, and this is {self._claim}"
            )
        self.state = state
        self._delete_old_objects()

    def _put_claim(self) -> str:
        objects = [*self._store.list_objects(CLAIMS), *self._store.list_objects(STATES)]
        number = max((claim_number(claim_of_name(o.key)) for o in objects), default=0) + 1
        claim = f"{number:08}-{secrets.token_hex(4)}"
        self._store.put(f"{CLAIMS}/{claim}", claim.encode())
        return claim

    def _delete_old_objects(self) -> None:
        """Delete old states of this writer, and once the states and claims of earlier writers."""
        old = self.state.number - KEPT_STATES
        if not self._deleted_others:
            self._deleted_others = True
            own = (self.state.name, f"{CLAIMS}/{self._claim}")
            for folder in (STATES, CLAIMS):
                for entry in self._store.list_objects(folder):
                    if claim_of_name(entry.key.removesuffix(".json.gz")) < self._claim and entry.key not in own:
                        self._store.delete(entry.key)
        elif old >= 1:
            self._store.delete(replace(self.state, number=old).name)
