"""The scheduler: each agent's tests, from what it said last and the tests as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.agents import (
    ACCOUNTS,
    ACTIVE_AGENTS,
    AGAIN,
    AGENT,
    ASSIGNMENTS,
    AT,
    TEST,
    TESTS,
    agents_settings,
    unless_forgotten,
)
from penstock.streams import F, Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The newest of an agent decides; of the same again, which is told when tests changed, the later batch, for it knows
# newer tests. What comes to the same is not written again. Who is forgotten, by a tombstone behind all that was said of
# it, is nobody until something new is said: what is told again is of an agent that was there before.
ASSIGNED = Fold(
    name="assigned",
    key=("agent",),
    state_schema="version BIGINT, digest STRING",
    update_sql="""
WITH newest AS (
  SELECT agent, arg_max(struct_pack(version := version, account := account, online := online, tests := tests,
    moment := timestamp, digest := digest), version) FILTER (WHERE version IS NOT NULL) AS said,
    max(n) FILTER (WHERE version IS NOT NULL) AS spoke, max(n) FILTER (WHERE version IS NULL) AS forgotten
  FROM records GROUP BY agent
)
SELECT agent, said, s.version IS NULL OR said.version >= s.version AS counts,
  CASE WHEN counts THEN said.version ELSE s.version END AS version,
  CASE WHEN counts THEN said.digest ELSE s.digest END AS digest, s.digest AS before
FROM newest LEFT JOIN state s USING (agent)
WHERE coalesce(spoke, -1) >= coalesce(forgotten, -1) AND (spoke IS NOT NULL OR s.agent IS NOT NULL)""",
    emit_sql="""
SELECT agent, said.account, said.online, said.tests, version, said.moment AS timestamp FROM folded
WHERE digest IS DISTINCT FROM before
UNION ALL SELECT DISTINCT agent, NULL, NULL, NULL, NULL, NULL FROM records ANTI JOIN folded USING (agent)
WHERE version IS NULL""",
    output_schema=f"agent STRING, account STRING, online BOOLEAN, tests ARRAY<STRUCT<{TEST}>>, version BIGINT, "
    "timestamp BIGINT",
)

# An agent that went offline is newer than it was when it said the same.
VERSION = "timestamp * 2 + IF(online, 0, 1)"
VALUE = ("agent", "account", "online", "tests", "version", "timestamp")
ONE = ("id", "name", "kind", "target", "every_seconds")


def transform(agents: DataFrame, again: DataFrame, tests: DataFrame, accounts: DataFrame) -> DataFrame:
    active = accounts.where("active = 1").select(F.col("id").alias("account_id"))
    # A test whose labels cannot be read would else match every agent.
    wants = F.map_entries(F.from_json("labels", "MAP<STRING,STRING>"))
    enabled = tests.where("enabled = 1").withColumn("wants", wants).where("wants IS NOT NULL")
    enabled = enabled.join(active, "account_id")
    # By id, as a struct is ordered by its first field.
    every = F.array_sort(F.collect_list(F.struct(*ONE, "wants"))).alias("every")
    by_account = enabled.groupBy(F.col("account_id").cast("string").alias("whose")).agg(every)
    n = F.col("record.offset")
    told = agents.withColumn("agent", F.col("record.key").cast("string")).withColumn("n", n).drop("record")
    said = told.unionByName(again.withColumn("n", F.lit(None).cast("bigint")))
    with_tests = said.join(by_account, said.account == by_account.whose, "left")
    found = with_tests.select(
        "agent", "account", "online", "timestamp", "n", "event_time", F.expr(VERSION).alias("version"), _tests()
    )
    digest = F.md5(F.to_json(F.struct("account", "online", "tests")))
    return ASSIGNED(found.withColumn("digest", digest)).withColumn("said", unless_forgotten(*VALUE))


def _tests() -> Column:
    """Those of the account that match; none of who is offline."""

    def matches(test: Column) -> Column:
        has = F.col("labels")
        return F.forall(test.wants, lambda want: F.coalesce(has[want["key"]] == want["value"], F.lit(False)))

    found = F.transform(F.filter("every", matches), lambda test: F.struct(*(test[name].alias(name) for name in ONE)))
    none = F.array().cast(f"ARRAY<STRUCT<{TEST}>>")
    return F.when(F.col("online"), F.coalesce(found, none)).otherwise(none).alias("tests")


STREAM = Stream(
    name="assignments",
    app="agents",
    enabled=agents_settings().run,
    inputs={
        "agents": Input(ACTIVE_AGENTS, schema=AGENT, event_time=AT, record=True, tombstones="keep"),
        "again": Input(AGAIN, schema=AGENT, event_time=AT),
        "tests": TESTS,
        "accounts": ACCOUNTS,
    },
    transform=transform,
    output=TopicOutput(ASSIGNMENTS, key="agent", value="said"),
    output_mode=KeyedState(),
    shuffle_partitions=2,
    # So that the agents of a large account, told again, hold up those of others for a batch at most.
    max_records=50_000,
)
