"""The project's own streams in SQL, and their folds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock import catalog
from penstock.model.fold import Fold
from penstock.model.sql.stream_query import SqlTransform
from penstock.model.stream import Stream
from penstock.settings import PROJECT


def project_stream(name: str) -> Stream:
    return catalog.load(PROJECT).stream(name)


def project_fold(stream: str) -> Fold:
    """The only fold of a stream in SQL."""
    [fold] = folds_in_sql([project_stream(stream)])
    return fold


def folds_in_sql(streams: Iterable[Stream]) -> Iterator[Fold]:
    """The folds of those streams that are declared in SQL."""
    for stream in streams:
        if isinstance(stream.transform, SqlTransform):
            yield from (one.fold for one in stream.transform.declared.folds)
