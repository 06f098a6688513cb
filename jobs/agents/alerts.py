"""Browser sessions become alerts: at most one for each account, rule and window, when the window has closed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs import captures
from jobs.agents import ALERTS, NAMED_AT, SESSION, SESSIONS, agents_settings
from penstock.streams import F, Fold, Input, KeyedState, Stream, Table, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RULES = Table(captures.ALERT_RULES, schema=captures.ALERT_RULE)

# The count and total of each window. `selection` is a digest of what a rule selects. A window of which its rule missed
# sessions must not be reported: if the rule was disabled or removed while sessions arrived, the count of its open
# windows is NULL; if its selection changed, they start again.
WINDOW_COUNTS = """
WITH active AS (
  SELECT account, any_value(active_rules) AS active_rules
  FROM records
  GROUP BY account
), open_windows AS (
  SELECT
    account,
    w.*,
    active.account IS NULL
      OR list_contains(active_rules, struct_pack(rule := w.rule, selection := w.selection)) AS is_unchanged,
    list_contains(list_transform(active_rules, lambda r: r.rule), w.rule) AS is_active
  FROM (SELECT account, unnest(windows) AS w FROM state)
  LEFT JOIN active USING (account)
), contributions AS (
  SELECT account, rule, selection, window_start, window_end, CASE WHEN enabled THEN 1 END AS count, value AS total
  FROM records
  WHERE rule IS NOT NULL
  UNION ALL
  SELECT account, rule, selection, window_start, window_end, CASE WHEN is_unchanged THEN count END, total
  FROM open_windows
  WHERE is_unchanged OR count IS NULL OR NOT is_active
), counted AS (
  SELECT
    account,
    rule,
    window_start,
    window_end,
    any_value(selection) AS selection,
    CASE WHEN count(*) = count(count) THEN sum(count)::BIGINT END AS count,
    sum(total) AS total
  FROM contributions
  GROUP BY account, rule, window_start, window_end
)"""
# `active_rules`: the enabled rules of the account, the same in all rows of a batch. A window stays in the state until
# its end has passed; after that every session of it is late.
WINDOWS = Fold(
    name="windows",
    key=("account",),
    state_schema="windows ARRAY<STRUCT<rule: BIGINT, selection: BIGINT, window_start: BIGINT, window_end: BIGINT, "
    "count: BIGINT, total: DOUBLE>>, due BIGINT",
    update_sql=f"""{WINDOW_COUNTS}
SELECT
  account,
  list(
    struct_pack(rule := rule, selection := selection, window_start := window_start, window_end := window_end,
      count := count, total := total)
    ORDER BY rule, window_start
  ) AS windows,
  min(window_end) AS due
FROM counted
WHERE window_end > getvariable('time')
GROUP BY account""",
    emit_sql=f"""{WINDOW_COUNTS}
SELECT rule, selection, window_start, window_end, count, total / count AS value
FROM counted
WHERE window_end <= getvariable('time') AND count > 0
ORDER BY ALL""",
    output_schema="rule BIGINT, selection BIGINT, window_start BIGINT, window_end BIGINT, count BIGINT, value DOUBLE",
    timer_field="due",
)

VALUE = ("account", "rule", "metric", "comparison", "threshold", "value", "count", "window_start", "window_end")


def transform(sessions: DataFrame, rules: DataFrame) -> DataFrame:
    all_rules = _parse_rules(rules)
    by_account = all_rules.groupBy(F.col("account").alias("rules_account")).agg(
        F.collect_list(F.struct("rule", "selection", "metric", "length", "required_labels", "enabled")).alias("rules")
    )
    # Sessions that no rule selects reach the fold too: a rule that is missing in `active_rules` has missed them.
    hits = sessions.join(by_account, F.col("account") == F.col("rules_account"), "left").select(
        "account", _active_rules(), F.explode_outer(_hits()).alias("hit"), "timestamp", "event_time"
    )
    length = F.col("hit.length")
    window_start = F.col("timestamp") - F.pmod("timestamp", length)
    closed = WINDOWS(
        hits.select(
            "account",
            "active_rules",
            "hit.rule",
            "hit.selection",
            "hit.enabled",
            window_start.alias("window_start"),
            (window_start + length).alias("window_end"),
            "hit.value",
            "event_time",
        )
    ).withColumnsRenamed({"rule": "closed_rule", "selection": "closed_selection"})
    # The present rule decides. One that was removed, or whose selection has changed, reports nothing.
    enabled = all_rules.where("enabled")
    is_same = (F.col("closed_rule") == F.col("rule")) & (F.col("closed_selection") == F.col("selection"))
    is_broken = F.expr(
        "count >= min_count AND CASE comparison WHEN 'over' THEN value > threshold "
        "WHEN 'under' THEN value < threshold END"
    )
    return closed.join(enabled, is_same).where(is_broken).select(*VALUE)


def _parse_rules(rules: DataFrame) -> DataFrame:
    """Rules with parsed columns. One whose labels cannot be parsed is left out: it would select every session."""
    required_labels = F.from_json("labels", "MAP<STRING,STRING>")
    is_valid = F.expr("coalesce(trim(labels), '') IN ('', 'null')") | required_labels.isNotNull()
    parsed = rules.where("window_seconds > 0").where(is_valid).select(
        F.col("id").alias("rule"),
        F.col("account_id").cast("string").alias("account"),
        "metric",
        "comparison",
        F.expr("try_cast(threshold AS DOUBLE)").alias("threshold"),
        F.expr("window_seconds * 1000").alias("length"),
        F.expr("coalesce(min_count, 1)").alias("min_count"),
        F.expr("enabled = 1").alias("enabled"),
        required_labels.alias("required_labels"),
    )  # fmt: skip
    return parsed.withColumn("selection", _selection())


def _selection() -> Column:
    """A digest of what a rule selects, equal for equal labels in any order."""
    labels = F.when(F.size("required_labels") > 0, F.array_sort(F.map_entries("required_labels")))
    return F.xxhash64(F.to_json(F.struct("account", "metric", "length", labels.alias("labels"))))


def _active_rules() -> Column:
    enabled = F.filter(F.coalesce("rules", F.array()), lambda rule: rule["enabled"])
    return F.transform(
        enabled, lambda rule: F.struct(rule["rule"].alias("rule"), rule["selection"].alias("selection"))
    ).alias("active_rules")


def _hits() -> Column:
    """The rules that select a session, with its value."""
    names = ("rule", "selection", "length", "enabled")
    return F.transform(
        F.filter("rules", _selects),
        lambda rule: F.struct(*(rule[name].alias(name) for name in names), _value(rule).alias("value")),
    )


def _value(rule: Column) -> Column:
    return F.col("metrics")[rule["metric"]]


def _selects(rule: Column) -> Column:
    # A session whose value is NaN or infinite is ignored: it would be the average of its window.
    is_finite = F.coalesce(F.abs(_value(rule)) < F.lit(float("inf")), F.lit(False))
    has_labels = F.forall(
        F.map_entries(rule["required_labels"]),
        lambda required: F.coalesce(F.col("labels")[required["key"]] == required["value"], F.lit(False)),
    )
    return is_finite & (rule["required_labels"].isNull() | F.coalesce(has_labels, F.lit(False)))


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
