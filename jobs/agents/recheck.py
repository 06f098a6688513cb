"""When a test or an account changes, the agents of the account are sent to `assignments` once more.

They are sent after the change, so `assignments` joins them with the changed test: docs/agents.md says why no agent is
missed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.agents import ACCOUNTS, ACTIVE_AGENTS, AGENT, RECHECKS, TESTS, agents_settings
from penstock.streams import F, Fold, Input, KeyedState, Stream, Table, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A tombstone has only the test's id, and a test may move to another account: so the account of each test is state.
# Both the previous and the new account of a changed test are emitted.
TEST_ACCOUNTS = Fold(
    name="test-accounts",
    key=("test",),
    state_schema="account STRING",
    update_sql="""
WITH latest AS (
  SELECT
    test,
    max(struct_pack(record_offset := record_offset, account := account))
      FILTER (WHERE record_offset IS NOT NULL) AS change
  FROM records
  GROUP BY test
), current AS (
  SELECT test, CASE WHEN change IS NULL THEN state.account ELSE change.account END AS account
  FROM latest
  LEFT JOIN state USING (test)
)
SELECT test, account
FROM current
WHERE account IS NOT NULL""",
    emit_sql="SELECT account FROM records WHERE account IS NOT NULL UNION SELECT account FROM state",
    output_schema="account STRING",
)
# Each account once in a batch, however many of its tests change. It has no state.
DISTINCT_ACCOUNTS = Fold(
    name="distinct-accounts",
    key=("account",),
    state_schema="unused BIGINT",
    update_sql="SELECT account, NULL::BIGINT AS unused FROM records WHERE false",
    emit_sql="SELECT DISTINCT account FROM records",
    output_schema="account STRING",
)


def transform(tests: DataFrame, accounts: DataFrame, agents: DataFrame) -> DataFrame:
    changed_tests = tests.select(
        _record_key("id").alias("test"),
        F.col("account_id").cast("string").alias("account"),
        F.col("record.offset").alias("record_offset"),
        "event_time",
    ).where("test IS NOT NULL")
    changed_accounts = accounts.select(_record_key("id").alias("account"), _no_event_time()).where(
        "account IS NOT NULL"
    )
    accounts_of_tests = TEST_ACCOUNTS(changed_tests).select("account", _no_event_time())
    affected = DISTINCT_ACCOUNTS(accounts_of_tests.unionByName(changed_accounts)).withColumnRenamed(
        "account", "affected_account"
    )
    return affected.join(agents, affected.affected_account == agents.account).drop("affected_account", "key")


def _record_key(field: str) -> Column:
    return F.get_json_object(F.col("record.key").cast("string"), f"$.{field}")


def _no_event_time() -> Column:
    """An event time for a fold that does not use it."""
    return F.lit(0).cast("timestamp").alias("event_time")


def _changes(table: Table) -> Input:
    return Input(
        table.topic,
        schema=table.schema,
        event_time="record.timestamp",
        record=True,
        tombstones="keep",
        dead_letters="count",
    )


STREAM = Stream(
    name="agents-recheck",
    app="agents",
    enabled=agents_settings().run,
    inputs={
        "tests": _changes(TESTS),
        "accounts": _changes(ACCOUNTS),
        "agents": Table(ACTIVE_AGENTS, schema=AGENT),
    },
    transform=transform,
    output=TopicOutput(
        RECHECKS,
        key="agent",
        value=("agent", "account", "platform", "version", "labels", "timestamp", "online", "since"),
    ),
    # The folds have no timers: a batch now and then keeps the table of agents near its topic's end, so that a change
    # finds it there.
    output_mode=KeyedState(tick=timedelta(seconds=30)),
    steps=2,
    shuffle_partitions=2,
    # Changes within a second make one batch.
    every=1.0,
)
