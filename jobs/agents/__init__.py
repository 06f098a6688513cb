"""Endpoint agents: which are active or offline, which tests each runs, and alerts on browser sessions.

Settings are variables `PENSTOCK_AGENTS_<FIELD>`; a change takes effect with a release of the app `agents`.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobs import captures
from penstock.settings import Duration
from penstock.streams import F, Table, Topic

if TYPE_CHECKING:
    from pyspark.sql import Column


class AgentsSettings(BaseSettings):
    """Durations as ISO 8601 (`PT25M`) or seconds."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_AGENTS_", frozen=True)

    run: bool = Field(True, description="whether the streams run")
    offline_after: Duration = Field(
        timedelta(minutes=25),
        ge=timedelta(milliseconds=1),
        description="how long an agent may be silent before it is offline",
    )
    grace: Duration = Field(
        timedelta(seconds=1),
        ge=timedelta(0),
        description="how long after that a check-in may still arrive before the absence is emitted",
    )
    forget_after: Duration = Field(
        timedelta(days=30),
        ge=timedelta(milliseconds=1),
        description="how long an agent may be offline before it is deleted",
    )
    alert_grace: Duration = Field(
        timedelta(milliseconds=500),
        ge=timedelta(0),
        description="how late a browser session may be",
    )


@cache
def agents_settings() -> AgentsSettings:
    return AgentsSettings()


REPORT = "agent STRING NOT NULL, account STRING NOT NULL, platform STRING, version STRING, labels MAP<STRING,STRING>"

# timestamp: epoch ms, by the agent's clock.
CHECK_IN = f"{REPORT}, timestamp BIGINT NOT NULL"
CHECK_INS = Topic("check-ins", partitions=4, retention=timedelta(days=2))

# timestamp: of the last check-in; since: the time from which the agent has been online or offline. Epoch ms.
AGENT = f"{CHECK_IN}, online BOOLEAN NOT NULL, since BIGINT NOT NULL"
DAY_MS = 24 * 60 * 60 * 1000
# A tombstone deletes an agent. It stays for a week, so the stream `assignments` must not be down for longer.
ACTIVE_AGENTS = Topic(
    "active-agents",
    partitions=4,
    compacted=True,
    may_add_partitions=False,
    config={"delete.retention.ms": str(7 * DAY_MS)},
)
RECHECKS = Topic("agent-rechecks", partitions=4, retention=timedelta(days=2))

# last_seen: the last check-in; timestamp: `offline_after` later. Epoch ms.
AGENT_OFFLINE = Topic("agent-offline", partitions=4, retention=timedelta(days=30))

# timestamp: of the agent's last check-in; version: grows with each change of the agent.
TEST = "id: BIGINT, name: STRING, kind: STRING, target: STRING, every_seconds: BIGINT"
ASSIGNMENT = (
    f"agent STRING NOT NULL, account STRING NOT NULL, online BOOLEAN NOT NULL, tests ARRAY<STRUCT<{TEST}>> NOT NULL, "
    "version BIGINT NOT NULL, timestamp BIGINT NOT NULL"
)
ASSIGNMENTS = Topic("assignments", partitions=4, compacted=True)

# metrics: values by name. timestamp: epoch ms.
SESSION = (
    "account STRING NOT NULL, agent STRING NOT NULL, metrics MAP<STRING,DOUBLE> NOT NULL, labels MAP<STRING,STRING>, "
    "timestamp BIGINT NOT NULL"
)
SESSIONS = Topic("browser-sessions", partitions=4, retention=timedelta(days=2))
# All alerts of the last 30 days, and the last one of each rule. They are few, so a segment may last a day.
ALERT = (
    "account STRING NOT NULL, rule BIGINT NOT NULL, metric STRING, comparison STRING, threshold DOUBLE, value DOUBLE, "
    "count BIGINT, window_start BIGINT, window_end BIGINT NOT NULL"
)
ALERTS = Topic(
    "alerts",
    partitions=4,
    compacted=True,
    config={
        "min.compaction.lag.ms": str(30 * DAY_MS),
        "max.compaction.lag.ms": str(31 * DAY_MS),
        "segment.ms": str(DAY_MS),
    },
)

AT = "timestamp_millis(timestamp)"
# A record without agent or account has no event time, so it is a dead letter.
NAMED_AT = f"CASE WHEN agent <> '' AND account <> '' THEN {AT} END"


def value_or_tombstone(*columns: str) -> Column:
    """A record's value; NULL, a tombstone, where `timestamp` is NULL: the agent is deleted."""
    return F.when(F.col("timestamp").isNotNull(), F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}))


TESTS = Table(captures.TESTS, schema=captures.TEST)
ACCOUNTS = Table(captures.ACCOUNTS, schema=captures.ACCOUNT)
