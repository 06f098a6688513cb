"""Changes of an archive's table, around two faults of pyiceberg 0.12.0: the only place that uses its private names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate


class ArchiveTransaction(Transaction):
    """A transaction that computes the metadata of its table once for each change.

    The library copies them, with all snapshots, at each look: fifteen times a commit.
    """

    def __init__(self, table: Table) -> None:
        """Begin a transaction.

        Args:
            table: The table. It is changed by `commit_transaction`.
        """
        super().__init__(table)
        self._computed: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the changes so far."""
        base, updates = self._table.metadata, self._updates
        if self._computed is None or self._computed[0] is not base or self._computed[1] is not updates:
            self._computed = (base, updates, super().table_metadata if updates else base)
        return self._computed[2]


def thread_safe(change: Any) -> Any:
    """Let each look for the manifests that name removed files have a state of its own: the library shares one among
    threads, which then miss a manifest now and then, and refuses the commit (ValidationException)."""
    build = change._build_manifest_evaluator

    def evaluator(spec: int) -> Callable[[Any], bool]:
        def matches(manifest: Any) -> bool:
            found: bool = build(spec)(manifest)
            return found

        return matches

    change._build_manifest_evaluator = evaluator
    return change
