-- Agents by their last check-in, and whether they are online.
UPSERT INTO elasticsearch.active-agents
READ active-agents AS JSON (
  agent STRING NOT NULL, account STRING, platform STRING, version STRING, labels MAP<STRING, STRING>, online BOOLEAN,
  since BIGINT, timestamp BIGINT
)
KEY (agent)
TOMBSTONES DELETE (string(record.key))
AS
SELECT agent, account, platform, version, labels, online, timestamp_millis(since) AS since,
  timestamp_millis(timestamp) AS last_seen
FROM `active-agents`
