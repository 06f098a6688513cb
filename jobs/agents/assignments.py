"""The tests that each agent is to run: those of its account whose labels the agent has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.agents import (
    ACCOUNTS,
    ACTIVE_AGENTS,
    AGENT,
    ASSIGNMENTS,
    AT,
    RECHECKS,
    TEST,
    TESTS,
    agents_settings,
    value_or_tombstone,
)
from penstock.streams import F, Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The check-in with the highest version wins. A check-in that is sent again with the same version, because tests have
# changed, wins over the earlier one: it was joined with newer tests. An assignment that is equal to the last one is not
# written again. A tombstone deletes the agent, unless a check-in of any version follows it; one that is sent again is
# of an agent that was there before the tombstone, so it does not bring the agent back.
ASSIGNED = Fold(
    name="assigned",
    key=("agent",),
    state_schema="version BIGINT, digest STRING",
    update_sql="""
WITH tombstones AS (
  SELECT agent, max(record_offset) AS tombstone_offset
  FROM records
  WHERE version IS NULL
  GROUP BY agent
), latest AS (
  SELECT
    agent,
    arg_max(
      struct_pack(version := version, account := account, online := online, tests := tests, timestamp := timestamp,
        digest := digest),
      version
    ) AS check_in,
    max(record_offset) AS check_in_offset,
    max(tombstone_offset) AS tombstone_offset
  FROM records
  LEFT JOIN tombstones USING (agent)
  WHERE version IS NOT NULL AND (tombstone_offset IS NULL OR record_offset > tombstone_offset)
  GROUP BY agent
)
SELECT
  latest.agent,
  check_in,
  state.version IS NULL OR check_in.version >= state.version AS is_newest,
  CASE WHEN is_newest THEN check_in.version ELSE state.version END AS version,
  CASE WHEN is_newest THEN check_in.digest ELSE state.digest END AS digest,
  state.digest AS previous_digest
FROM latest
LEFT JOIN state ON state.agent = latest.agent AND tombstone_offset IS NULL
WHERE check_in_offset IS NOT NULL OR state.agent IS NOT NULL""",
    emit_sql="""
SELECT agent, check_in.account, check_in.online, check_in.tests, version, check_in.timestamp
FROM folded
WHERE digest IS DISTINCT FROM previous_digest
UNION ALL
-- A tombstone for each agent that is deleted.
SELECT DISTINCT agent, NULL, NULL, NULL, NULL, NULL
FROM records ANTI JOIN folded USING (agent)
WHERE version IS NULL""",
    output_schema=f"agent STRING, account STRING, online BOOLEAN, tests ARRAY<STRUCT<{TEST}>>, version BIGINT, "
    "timestamp BIGINT",
)

# Going offline has the timestamp of the last check-in, and is newer than it.
VERSION = "timestamp * 2 + IF(online, 0, 1)"
VALUE = ("agent", "account", "online", "tests", "version", "timestamp")
TEST_COLUMNS = ("id", "name", "kind", "target", "every_seconds")


def transform(agents: DataFrame, rechecks: DataFrame, tests: DataFrame, accounts: DataFrame) -> DataFrame:
    changes = (
        agents.withColumn("agent", F.col("record.key").cast("string"))
        .withColumn("record_offset", F.col("record.offset"))
        .drop("record")
        .unionByName(rechecks.withColumn("record_offset", F.lit(None).cast("bigint")))
    )
    by_account = _tests_by_account(tests, accounts)
    with_tests = changes.join(by_account, changes.account == by_account.test_account, "left").select(
        "agent",
        "account",
        "online",
        "timestamp",
        "record_offset",
        "event_time",
        F.expr(VERSION).alias("version"),
        _matching_tests().alias("tests"),
    )
    digest = F.md5(F.to_json(F.struct("account", "online", "tests")))
    return ASSIGNED(with_tests.withColumn("digest", digest)).withColumn("value", value_or_tombstone(*VALUE))


def _tests_by_account(tests: DataFrame, accounts: DataFrame) -> DataFrame:
    """Enabled tests of active accounts: `test_account STRING` and `account_tests`, an array sorted by id."""
    active = accounts.where("active = 1").select(F.col("id").alias("account_id"))
    # A test whose labels cannot be parsed is left out: without labels it would match every agent.
    required = F.map_entries(F.from_json("labels", "MAP<STRING,STRING>"))
    enabled = tests.where("enabled = 1").withColumn("required_labels", required).where("required_labels IS NOT NULL")
    # Structs are sorted by their first field, the id.
    account_tests = F.array_sort(F.collect_list(F.struct(*TEST_COLUMNS, "required_labels")))
    return (
        enabled.join(active, "account_id")
        .groupBy(F.col("account_id").cast("string").alias("test_account"))
        .agg(account_tests.alias("account_tests"))
    )


def _matching_tests() -> Column:
    """The tests of the account whose labels the agent has; none while it is offline."""

    def matches(test: Column) -> Column:
        labels = F.col("labels")
        return F.forall(
            test.required_labels,
            lambda required: F.coalesce(labels[required["key"]] == required["value"], F.lit(False)),
        )

    matching = F.transform(
        F.filter("account_tests", matches), lambda test: F.struct(*(test[name].alias(name) for name in TEST_COLUMNS))
    )
    none = F.array().cast(f"ARRAY<STRUCT<{TEST}>>")
    return F.when(F.col("online"), F.coalesce(matching, none)).otherwise(none)


STREAM = Stream(
    name="assignments",
    app="agents",
    enabled=agents_settings().run,
    inputs={
        "agents": Input(ACTIVE_AGENTS, schema=AGENT, event_time=AT, record=True, tombstones="keep"),
        "rechecks": Input(RECHECKS, schema=AGENT, event_time=AT),
        "tests": TESTS,
        "accounts": ACCOUNTS,
    },
    transform=transform,
    output=TopicOutput(ASSIGNMENTS, key="agent", value="value"),
    output_mode=KeyedState(),
    shuffle_partitions=2,
    # The agents of a large account, sent again, delay those of others by one batch at most.
    max_records=50_000,
)
