"""Browser sessions become alerts: of each window, account and rule one at most, when the window has closed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs import captures
from jobs.agents import ALERTS, NAMED_AT, SESSION, SESSIONS, agents_settings
from penstock.streams import F, Fold, Input, KeyedState, Stream, Table, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RULES = Table(captures.ALERT_RULES, schema=captures.ALERT_RULE)

# Each window's sessions, `count` and `total`. A window of which its rule missed sessions would be told of a part of
# them: so one that was open while its rule was disabled or gone has no count, and one whose rule looked at others
# meanwhile begins anew.
COUNTED = """
WITH now AS (
  SELECT account, any_value(present) AS present FROM records GROUP BY account
), before AS (
  SELECT account, w.*,
    n.account IS NULL OR list_contains(n.present, struct_pack(rule := w.rule, looks := w.looks)) AS same,
    list_contains(list_transform(n.present, lambda p: p.rule), w.rule) AS looks_on
  FROM (SELECT account, unnest(windows) AS w FROM state) LEFT JOIN now n USING (account)
), counted AS (
  SELECT account, rule, began, ended, any_value(looks) AS looks,
    CASE WHEN count(*) = count(count) THEN sum(count)::BIGINT END AS count, sum(total) AS total
  FROM (
    SELECT account, rule, looks, began, ended, CASE WHEN enabled THEN 1 END AS count, value AS total
      FROM records WHERE rule IS NOT NULL
    UNION ALL SELECT account, rule, looks, began, ended, CASE WHEN same THEN count END, total
      FROM before WHERE same OR count IS NULL OR NOT looks_on)
  GROUP BY account, rule, began, ended
)"""
# present: the rules that count sessions of the account, and what each looks at: the same in all of a batch's rows.
# A window is in the state until its end has passed; in the batches behind that one every session of it is late.
WINDOWS = Fold(
    name="windows",
    key=("account",),
    state_schema="windows ARRAY<STRUCT<rule: BIGINT, looks: BIGINT, began: BIGINT, ended: BIGINT, count: BIGINT, "
    "total: DOUBLE>>, due BIGINT",
    update_sql=f"""{COUNTED}
SELECT account, list(struct_pack(rule := rule, looks := looks, began := began, ended := ended, count := count,
    total := total) ORDER BY rule, began) AS windows, min(ended) AS due
FROM counted WHERE ended > getvariable('time') GROUP BY account""",
    emit_sql=f"""{COUNTED}
SELECT rule, looks, began, ended, count, total / count AS value
FROM counted WHERE ended <= getvariable('time') AND count > 0 ORDER BY ALL""",
    output_schema="rule BIGINT, looks BIGINT, began BIGINT, ended BIGINT, count BIGINT, value DOUBLE",
    timer_field="due",
)

VALUE = ("account", "rule", "metric", "comparison", "threshold", "value", "count", "window_start", "window_end")


def transform(sessions: DataFrame, rules: DataFrame) -> DataFrame:
    # One whose labels cannot be read would else look at every session.
    asks = F.from_json("labels", "MAP<STRING,STRING>")
    readable = F.expr("coalesce(trim(labels), '') IN ('', 'null')") | asks.isNotNull()
    every = rules.where("window_seconds > 0").where(readable).select(
        F.col("id").alias("rule"), F.col("account_id").cast("string").alias("account"), "metric", "comparison",
        F.expr("try_cast(threshold AS DOUBLE)").alias("threshold"), F.expr("window_seconds * 1000").alias("length"),
        F.expr("coalesce(min_count, 1)").alias("min_count"), F.expr("enabled = 1").alias("enabled"),
        asks.alias("wants"),
    ).withColumn("looks", _looks())  # fmt: skip
    known = every.where("enabled")
    asked = every.groupBy(F.col("account").alias("whose")).agg(
        F.collect_list(F.struct("rule", "looks", "metric", "length", "wants", "enabled")).alias("asked")
    )
    # Also those that no rule looks at: what is not there when they come has missed them.
    found = sessions.join(asked, F.col("account") == F.col("whose"), "left").select(
        "account", _present(), F.explode_outer(_hits()).alias("hit"), "timestamp", "event_time"
    )
    length = F.col("hit.length")
    began = F.col("timestamp") - F.pmod("timestamp", length)
    given = found.select(
        "account", "present", "hit.rule", "hit.looks", "hit.enabled", began.alias("began"),
        (began + length).alias("ended"), "hit.value", "event_time",
    )  # fmt: skip
    closed = WINDOWS(given).withColumnsRenamed({"rule": "closed", "looks": "looked"})
    # By the rule as it is now; one that is gone, looks at other sessions or has other windows tells nothing.
    broken = F.expr(
        "count >= min_count AND CASE comparison WHEN 'over' THEN value > threshold "
        "WHEN 'under' THEN value < threshold END"
    )
    same = (F.col("closed") == F.col("rule")) & (F.col("looked") == F.col("looks"))
    return closed.join(known, same).where(broken).select(
        "account", "rule", "metric", "comparison", "threshold", "value",
        "count", F.col("began").alias("window_start"), F.col("ended").alias("window_end"),
    )  # fmt: skip


def _looks() -> Column:
    """The same for the same sessions, in whatever order labels are written, and windows."""
    wants = F.when(F.size("wants") > 0, F.array_sort(F.map_entries("wants")))
    return F.xxhash64(F.to_json(F.struct("account", "metric", "length", wants.alias("wants"))))


def _present() -> Column:
    enabled = F.filter(F.coalesce("asked", F.array()), lambda rule: rule["enabled"])
    return F.transform(enabled, lambda r: F.struct(r["rule"].alias("rule"), r["looks"].alias("looks"))).alias("present")


def _hits() -> Column:
    """The rules that look at a session, with its value."""
    looking = F.filter("asked", _matches)
    names = ("rule", "looks", "length", "enabled")
    return F.transform(looking, lambda rule: F.struct(*(rule[n].alias(n) for n in names), _value(rule).alias("value")))


def _value(rule: Column) -> Column:
    return F.col("metrics")[rule["metric"]]


def _matches(rule: Column) -> Column:
    # Records may say NaN and infinity, and an average with one of them would be that.
    finite = F.coalesce(F.abs(_value(rule)) < F.lit(float("inf")), F.lit(False))
    same = F.forall(
        F.map_entries(rule["wants"]),
        lambda want: F.coalesce(F.col("labels")[want["key"]] == want["value"], F.lit(False)),
    )
    return finite & (rule["wants"].isNull() | F.coalesce(same, F.lit(False)))


STREAM = Stream(
    name="alerts",
    app="agents",
    enabled=agents_settings().run,
    inputs={
        "sessions": Input(SESSIONS, schema=SESSION, event_time=NAMED_AT),
        "rules": RULES,
    },
    transform=transform,
    output=TopicOutput(ALERTS, key=("account", "rule"), value=VALUE),
    output_mode=KeyedState(grace=agents_settings().alert_grace, tick=timedelta(seconds=1)),
    shuffle_partitions=2,
)
