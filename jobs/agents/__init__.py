"""Endpoint agents: who checks in and who is offline, which tests each is to run, and alerts on browser sessions.

Settings are variables `PENSTOCK_AGENTS_<FIELD>`; a change takes effect with a release of the app `agents`.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from penstock.settings import Duration
from penstock.streams import F, Table, Topic

if TYPE_CHECKING:
    from pyspark.sql import Column


class AgentsSettings(BaseSettings):
    """Durations as ISO 8601 (`PT25M`) or seconds."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_AGENTS_", frozen=True)

    run: bool = Field(False, description="whether the streams run: their beats take half a core where nobody sends")
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


SAID = "agent STRING NOT NULL, account STRING NOT NULL, platform STRING, version STRING, labels MAP<STRING,STRING>"

# timestamp: epoch ms by the agent's clock.
CHECK_IN = f"{SAID}, timestamp BIGINT NOT NULL"
CHECK_INS = Topic("check-ins", partitions=4, retention=timedelta(days=2))

# What its last check-in said, timestamp being when; since: when it came online or went offline, epoch ms.
AGENT = f"{CHECK_IN}, online BOOLEAN NOT NULL, since BIGINT NOT NULL"
DAY_MS = 24 * 60 * 60 * 1000
# A tombstone: the agent is forgotten. The scheduler must not be away for longer than it stays, a week.
ACTIVE_AGENTS = Topic(
    "active-agents",
    partitions=4,
    compacted=True,
    may_add_partitions=False,
    config={"delete.retention.ms": str(7 * DAY_MS)},
)
AGAIN = Topic("check-ins-again", partitions=4, retention=timedelta(days=2))

# last_seen: its last check-in; timestamp: when it had been silent for too long. Epoch ms.
AGENT_OFFLINE = Topic("agent-offline", partitions=4, retention=timedelta(days=30))

# timestamp: of the agent's last check-in then; version: grows with what the agent says and is.
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
# Who sends no name is nobody.
KNOWN = f"CASE WHEN agent <> '' AND account <> '' THEN {AT} END"


def unless_forgotten(*columns: str) -> Column:
    """A record's value; none, a tombstone, of an agent that has no time any more."""
    return F.when(F.col("timestamp").isNotNull(), F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}))


def captured(name: str) -> Topic:
    """A topic as its file in `sql/captures/` makes it."""
    return Topic(
        name, compacted=True, heartbeat_every=0, may_add_partitions=False, config={"max.message.bytes": "16777216"}
    )


# `enabled` and `active` are 0 or 1. labels: what a test asks of agents, a JSON object. It lies in the row of the test,
# for of two tables one would be seen without the other.
TESTS = Table(
    captured("tests"),
    schema="id BIGINT NOT NULL, account_id BIGINT NOT NULL, name STRING, kind STRING, target STRING, "
    "every_seconds BIGINT, enabled INT NOT NULL, labels STRING NOT NULL",
)
ACCOUNTS = Table(captured("accounts"), schema="id BIGINT NOT NULL, active INT NOT NULL")
