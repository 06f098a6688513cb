"""The reconciler: when a test changes, the agents of its account are told to the scheduler once more.

What is told is told behind the change, so the scheduler's tables have it: docs/agents.md says why no agent is missed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.agents import ACCOUNTS, ACTIVE_AGENTS, AGAIN, AGENT, TESTS, agents_settings
from penstock.streams import F, Fold, Input, KeyedState, Stream, Table, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A tombstone has only its key, and a test that moved was another account's: so the account of each is remembered.
WHOSE = Fold(
    name="whose",
    key=("test",),
    state_schema="account STRING",
    update_sql="""
FROM (
  SELECT test, CASE WHEN latest IS NULL THEN s.account ELSE latest.account END AS account FROM (
    SELECT test, max(struct_pack(n := n, account := account)) FILTER (WHERE n IS NOT NULL) AS latest
    FROM records GROUP BY test
  ) LEFT JOIN state s USING (test)
) WHERE account IS NOT NULL""",
    emit_sql="SELECT account FROM records WHERE account IS NOT NULL UNION SELECT account FROM state",
    output_schema="account STRING",
)
# However many of its tests change in a batch, an account is told of once.
ONCE = Fold(
    name="once",
    key=("account",),
    state_schema="nothing BIGINT",
    update_sql="SELECT account, NULL::BIGINT AS nothing FROM records WHERE false",
    emit_sql="SELECT DISTINCT account FROM records",
    output_schema="account STRING",
)


def transform(tests: DataFrame, accounts: DataFrame, agents: DataFrame) -> DataFrame:
    moved = tests.select(
        _key("id").alias("test"), F.col("account_id").cast("string").alias("account"),
        F.col("record.offset").alias("n"), "event_time",
    )  # fmt: skip
    # Neither fold asks for the time of what it is given.
    of_tests = WHOSE(moved.where("test IS NOT NULL")).select("account", _never())
    changed = accounts.select(_key("id").alias("account"), _never()).where("account IS NOT NULL")
    concerned = ONCE(of_tests.unionByName(changed)).withColumnRenamed("account", "concerned")
    return concerned.join(agents, concerned.concerned == agents.account).drop("concerned", "key")


def _key(field: str) -> Column:
    return F.get_json_object(F.col("record.key").cast("string"), f"$.{field}")


def _never() -> Column:
    return F.lit(0).cast("timestamp").alias("event_time")


def _changes(of: Table) -> Input:
    return Input(
        of.topic, schema=of.schema, event_time="record.timestamp", record=True, tombstones="keep", dead_letters="count"
    )


STREAM = Stream(
    name="agents-again",
    app="agents",
    enabled=agents_settings().run,
    inputs={
        "tests": _changes(TESTS),
        "accounts": _changes(ACCOUNTS),
        "agents": Table(ACTIVE_AGENTS, schema=AGENT),
    },
    transform=transform,
    output=TopicOutput(
        AGAIN,
        key="agent",
        value=("agent", "account", "platform", "version", "labels", "timestamp", "online", "since"),
    ),
    # Nothing is ever due: a batch now and then keeps the table of agents near its topic's end, so that a change finds
    # it there.
    output_mode=KeyedState(tick=timedelta(seconds=30)),
    steps=2,
    shuffle_partitions=2,
    # Changes that come together are one.
    every=1.0,
)
