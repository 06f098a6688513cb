-- The tests that each agent must run, as documents.
UPSERT INTO mongodb.penstock.assignments
READ assignments AS JSON (
  agent STRING NOT NULL, account STRING, online BOOLEAN, timestamp BIGINT,
  tests ARRAY<STRUCT<id: BIGINT, name: STRING, kind: STRING, target: STRING, every_seconds: BIGINT>>
)
KEY (agent)
INDEX (account)
TOMBSTONES DELETE (string(record.key))
AS
SELECT agent, account, online, timestamp_millis(timestamp) AS last_seen, tests
FROM assignments
