"""Results of a backfill, as text for logs and the operator page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.backfill.job import BackfillMarker
    from penstock.backfill.source import BackfillSource

DRY_RUN_CHARS = 300
"""Characters shown of the key and of the value of a row."""


def unchanged_text(source: BackfillSource, marker: BackfillMarker) -> str:
    if not marker.rows:
        return no_rows_text(source)
    suffix = f"; {marker.skipped:,} records of the source gave none" if marker.skipped else ""
    return f"nothing is new: {marker.rows:,} rows were written and verified by an earlier run{suffix}"


def no_rows_text(source: BackfillSource) -> str:
    """Why nothing is written."""
    if not (count := sum(span.rows for span in source.spans.values())):
        return source.empty_text
    return f"none of the {count:,} records of the source, or of its hours, gives a row of this interval"


def row_text(row: Mapping[str, Any]) -> str:
    key, value = ((row[name] or b"").decode(errors="replace") for name in ("key", "value"))
    return re.sub(r"\s+", " ", f"{key[:DRY_RUN_CHARS]}: {value[:DRY_RUN_CHARS]}")
