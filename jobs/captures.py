"""Topics that the captures of sql/captures/ write, and the schemas of their rows."""

from __future__ import annotations

from penstock.streams import Topic


def capture_topic(name: str) -> Topic:
    """A topic with the settings that its file in sql/captures/ declares."""
    return Topic(
        name, compacted=True, heartbeat_every=0, may_add_partitions=False, config={"max.message.bytes": "16777216"}
    )


# `active` and `enabled` are 0 or 1.
ACCOUNTS = capture_topic("accounts")
ACCOUNT = "id BIGINT NOT NULL, name STRING, plan STRING, active INT NOT NULL, updated_at STRING"

# labels: a JSON object of the labels that a test requires of agents. They are captured in the row of the test, because
# a stream could read one of two tables without the other.
TESTS = capture_topic("tests")
TEST = (
    "id BIGINT NOT NULL, account_id BIGINT NOT NULL, name STRING, kind STRING, target STRING, every_seconds BIGINT, "
    "enabled INT NOT NULL, labels STRING NOT NULL, updated_at STRING"
)

# labels: a JSON object of the labels that a session must have; empty or NULL for none.
ALERT_RULES = capture_topic("alert-rules")
ALERT_RULE = (
    "id BIGINT NOT NULL, account_id BIGINT NOT NULL, metric STRING NOT NULL, comparison STRING NOT NULL, "
    "threshold STRING NOT NULL, window_seconds BIGINT NOT NULL, min_count BIGINT, labels STRING, enabled INT NOT NULL"
)

# threshold: the least signal that counts, dBm.
BUSINESSES = capture_topic("businesses")
BUSINESS = "id BIGINT NOT NULL, threshold INT NOT NULL"
