"""One stage of the summaries as keyed state in columns, instead of Spark's windows and its state store.

It is late by record, not by window: `KeyedState` has no window that decides it. The benchmark has no late records.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics import bundles, metrics_settings, receipts
from jobs.metrics.partials import MAX_EXACT
from jobs.metrics.statistics import KEY, MOMENTS, quantile_names
from penstock.codec import event_time
from penstock.streams import Combiner, Fold, KeyedState, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

S = metrics_settings()
WINDOW_MS = S.summary // timedelta(milliseconds=1)
NUMBER = event_time.window_number("event_time", 1000 * WINDOW_MS)
SCALE = float(10**S.decimals)
TRUNCATED = f"CASE WHEN abs(v * {SCALE!r}) < {MAX_EXACT!r} THEN (trunc(v * {SCALE!r}) + 0.0) / {SCALE!r} ELSE v END"
RANKS = ", ".join(
    f"truncated[CASE WHEN ceil(n * {q}) > 1 AND (ceil(n * {q}) - 1) / n >= {q} THEN ceil(n * {q})::BIGINT - 1 "
    f"WHEN ceil(n * {q}) / n >= {q} THEN ceil(n * {q})::BIGINT ELSE ceil(n * {q})::BIGINT + 1 END] AS {name}"
    for q, name in zip(S.quantiles, quantile_names(S.quantiles), strict=True)
)
LISTS = Combiner(
    "environment STRING NOT NULL, metric STRING NOT NULL, window BIGINT NOT NULL, values ARRAY<DOUBLE>",
    f"""
    SELECT environment, metric, {WINDOW_MS} * {NUMBER} AS "window", list(value) AS "values",
      max(event_time) AS event_time
    FROM records
    GROUP BY environment, metric, {NUMBER}
    """,
)
SUMMARIES = Fold(
    name="summaries",
    key=KEY,
    state_schema="received ARRAY<DOUBLE>",
    update_sql="""
    SELECT environment, metric, "window",
      list_concat(coalesce(any_value(state.received), []), flatten(list(records."values"))) AS received
    FROM records
    LEFT JOIN state USING (environment, metric, "window")
    GROUP BY environment, metric, "window"
    """,
    emit_sql=f"""
    WITH sorted AS (
      SELECT *, len(received) AS n, list_sort(list_transform(received, lambda v: {TRUNCATED})) AS truncated
      FROM folded
    )
    SELECT environment, metric, "window", n AS "count", list_avg(received) AS average, list_min(received) AS "min",
      list_max(received) AS "max", list_stddev_pop(received) AS stddev, {RANKS}
    FROM sorted
    """,
    output_schema="environment STRING, metric STRING, window BIGINT, count BIGINT, average DOUBLE, min DOUBLE, "
    "max DOUBLE, stddev DOUBLE, " + ", ".join(f"{name} DOUBLE" for name in quantile_names(S.quantiles)),
    expires_when=f"\"window\" + {WINDOW_MS} <= getvariable('watermark')",
    input_retention=S.grace + S.summary,
)


def summarize(receipts: DataFrame) -> DataFrame:
    return SUMMARIES(receipts)


STREAM = Stream(
    name="keyed-summaries",
    app="keyed",
    inputs={"receipts": replace(receipts(S.summary), combine=LISTS)},
    transform=summarize,
    output=TopicOutput(
        Topic("keyed-summaries", partitions=2, compacted=True),
        key=KEY,
        value=(*KEY, *MOMENTS, *quantile_names(S.quantiles)),
    ),
    output_mode=KeyedState(grace=timedelta(hours=1)),
    shuffle_partitions=2,
    max_records=bundles.STREAM.max_records,
)
