"""Three faults of pyiceberg 0.12.0, and how they are avoided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import pyarrow as reading
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate
from pyiceberg.types import ListType, MapType


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


class NullKeepingVisitor(reading.ArrowProjectionVisitor):
    """Reads a NULL list of structs, and a NULL map of structs, as NULL. The library makes them empty."""

    def list(
        self, list_type: ListType, list_array: pa.Array[Any] | None, value_array: pa.Array[Any] | None
    ) -> pa.Array[Any] | None:
        """A list in the columns that are asked for."""
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array[Any] | None,
        key_result: pa.Array[Any] | None,
        value_result: pa.Array[Any] | None,
    ) -> pa.Array[Any] | None:
        """A map in the columns that are asked for."""
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _with_nulls_of(array: pa.Array[Any] | None, projected: pa.Array[Any] | None) -> pa.Array[Any] | None:
    if array is None or projected is None or projected.null_count == array.null_count:
        return projected
    kept: pa.Array[Any] = pc.if_else(array.is_null(), pa.scalar(None, projected.type), projected)
    return kept


# Where the library looks it up for each batch that it reads.
reading.ArrowProjectionVisitor = NullKeepingVisitor  # type: ignore[misc]
