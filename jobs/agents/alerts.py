"""Browser sessions become alerts: of each window, account and rule one at most, when the window has closed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.agents import ALERTS, KNOWN, SESSION, SESSIONS, agents_settings, captured
from penstock.streams import F, Fold, Folded, Input, Stream, Table, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# min_count and labels are NULL in a table of before these were there. labels: a JSON object, what a session must have.
RULES = Table(
    captured("alert-rules"),
    schema="id BIGINT NOT NULL, account_id BIGINT NOT NULL, metric STRING NOT NULL, comparison STRING NOT NULL, "
    "threshold STRING NOT NULL, window_seconds BIGINT NOT NULL, min_count BIGINT, labels STRING, enabled INT NOT NULL",
)

COUNTED = """FROM (
  SELECT rule, looks, began, ended, 1 AS count, value AS total FROM records
  UNION ALL SELECT rule, looks, began, ended, count, total FROM state)"""
# looks: which sessions the rule looks at, so that those of one metric are not counted with those of another.
# A window is in the state until its end has passed; in the batches behind that one every session of it is late.
WINDOWS = Fold(
    name="windows",
    key=("rule", "looks", "began", "ended"),
    state="count BIGINT, total DOUBLE, due BIGINT",
    fold="SELECT rule, looks, began, ended, sum(count)::BIGINT AS count, sum(total) AS total, ended AS due "
    f"{COUNTED} WHERE ended > getvariable('time') GROUP BY ALL",
    rows="SELECT rule, looks, began, ended, sum(count)::BIGINT AS count, sum(total) / sum(count) AS value "
    f"{COUNTED} WHERE ended <= getvariable('time') GROUP BY ALL ORDER BY ALL",
    gives="rule BIGINT, looks STRING, began BIGINT, ended BIGINT, count BIGINT, value DOUBLE",
    due="due",
)

VALUE = ("account", "rule", "metric", "comparison", "threshold", "value", "count", "window_start", "window_end")


def transform(sessions: DataFrame, rules: DataFrame) -> DataFrame:
    # One whose labels cannot be read would else look at every session.
    asks = F.from_json("labels", "MAP<STRING,STRING>")
    readable = F.expr("coalesce(trim(labels), '') IN ('', 'null')") | asks.isNotNull()
    known = rules.where("enabled = 1 AND window_seconds > 0").where(readable).select(
        F.col("id").alias("rule"), F.col("account_id").cast("string").alias("account"), "metric", "comparison",
        F.expr("try_cast(threshold AS DOUBLE)").alias("threshold"), F.expr("window_seconds * 1000").alias("length"),
        F.expr("coalesce(min_count, 1)").alias("min_count"),
        asks.alias("wants"),
    ).withColumn("looks", _looks())  # fmt: skip
    asked = known.select(
        "rule", "looks", F.col("account").alias("whose"), F.col("metric").alias("of"), "length", "wants"
    )
    each = sessions.select(
        "account", F.explode("metrics").alias("metric", "value"), "labels", "timestamp", "event_time"
    )
    # Records may say NaN and infinity, and an average with one of them would be that.
    found = each.where("abs(value) < double('Infinity')").join(
        asked, (F.col("account") == F.col("whose")) & (F.col("metric") == F.col("of"))
    )
    began = F.expr("timestamp - pmod(timestamp, length)")
    given = found.where(_matches()).select(
        "rule", "looks", began.alias("began"), (began + F.col("length")).alias("ended"), "value", "event_time"
    )
    closed = WINDOWS(given).withColumnsRenamed({"rule": "closed", "looks": "looked"})
    # By the rule as it is now; one that is gone, looks at other sessions or has other windows tells nothing.
    broken = F.expr(
        "count >= min_count AND ended - began = length AND CASE comparison WHEN 'over' THEN value > threshold "
        "WHEN 'under' THEN value < threshold END"
    )
    same = (F.col("closed") == F.col("rule")) & (F.col("looked") == F.col("looks"))
    return closed.join(known, same).where(broken).select(
        "account", "rule", "metric", "comparison", "threshold", "value",
        "count", F.col("began").alias("window_start"), F.col("ended").alias("window_end"),
    )  # fmt: skip


def _looks() -> Column:
    """The same for the same sessions, in whatever order labels are written."""
    wants = F.when(F.size("wants") > 0, F.array_sort(F.map_entries("wants")))
    return F.md5(F.to_json(F.struct("account", "metric", wants.alias("wants"))))


def _matches() -> Column:
    same = F.forall(
        F.map_entries("wants"), lambda want: F.coalesce(F.col("labels")[want["key"]] == want["value"], F.lit(False))
    )
    return F.col("wants").isNull() | F.coalesce(same, F.lit(False))


STREAM = Stream(
    name="alerts",
    app="agents",
    runs=agents_settings().run,
    inputs={
        "sessions": Input(SESSIONS, schema=SESSION, event_time=KNOWN),
        "rules": RULES,
    },
    transform=transform,
    output=TopicOutput(ALERTS, key=("account", "rule"), value=VALUE),
    promise=Folded(late_by=agents_settings().alert_grace, tick=timedelta(seconds=1)),
    shuffle_partitions=2,
)
