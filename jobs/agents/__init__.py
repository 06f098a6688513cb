"""Endpoint agents: who checks in and who is offline, which tests each is to run, and alerts on browser sessions.

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

    run: bool = Field(
        False, description="whether the streams run: their heartbeats take half a core where nobody sends"
    )
    offline_after: Duration = Field(
        timedelta(minutes=25),
        ge=timedelta(milliseconds=1),
        description="how long an agent may be silent before it is offline",
    )
    grace: Duration = Field(
        timedelta(seconds=1), ge=timedelta(0), description="how long a check-in may be on its way before that is told"
    )
    forget_after: Duration = Field(
        timedelta(days=30),
        ge=timedelta(milliseconds=1),
        description="how long an agent may be offline before it is forgotten",
    )
    alert_grace: Duration = Field(
        timedelta(milliseconds=500),
        ge=timedelta(0),
        description="how long a browser session may be on its way and still count",
    )


@cache
def agents_settings() -> AgentsSettings:
    return AgentsSettings()


REPORT = "agent STRING NOT NULL, account STRING NOT NULL, platform STRING, version STRING, labels MAP<STRING,STRING>"

# timestamp: epoch ms by the agent's clock.
CHECK_IN = f"{REPORT}, timestamp BIGINT NOT NULL"
CHECK_INS = Topic("check-ins", partitions=4, retention=timedelta(days=2))

# The last check-in. timestamp: when that was; since: when the agent came online or went offline. Epoch ms.
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

# last_seen: its last check-in; timestamp: when it had been silent for too long. Epoch ms.
AGENT_OFFLINE = Topic("agent-offline", partitions=4, retention=timedelta(days=30))

# timestamp: of the agent's last check-in; version: grows with each change of the agent.
TEST = "id: BIGINT, name: STRING, kind: STRING, target: STRING, every_seconds: BIGINT"
ASSIGNMENT = (
    f"agent STRING NOT NULL, account STRING NOT NULL, online BOOLEAN NOT NULL, tests ARRAY<STRUCT<{TEST}>> NOT NULL, "
    "version BIGINT NOT NULL, timestamp BIGINT NOT NULL"
)
ASSIGNMENTS = Topic("assignments", partitions=4, compacted=True)

# Each metric of a session by name, as labels are. timestamp: epoch ms.
SESSION = (
    "account STRING NOT NULL, agent STRING NOT NULL, metrics MAP<STRING,DOUBLE> NOT NULL, labels MAP<STRING,STRING>, "
    "timestamp BIGINT NOT NULL"
)
SESSIONS = Topic("browser-sessions", partitions=4, retention=timedelta(days=2))
# All alerts of the last thirty days, then the last of each rule. They are few: small segments would be too many.
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
# A record without names has no event time, and so is a dead letter.
NAMED_AT = f"CASE WHEN agent <> '' AND account <> '' THEN {AT} END"


def value_or_tombstone(*columns: str) -> Column:
    """A record's value; NULL, a tombstone, where `timestamp` is NULL: the agent is deleted."""
    return F.when(F.col("timestamp").isNotNull(), F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}))


TESTS = Table(captures.TESTS, schema=captures.TEST)
ACCOUNTS = Table(captures.ACCOUNTS, schema=captures.ACCOUNT)
