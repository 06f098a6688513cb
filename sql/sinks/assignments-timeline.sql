-- Every assignment, by month. A record that is read again is the same document.
INSERT INTO elasticsearch.assignments-timeline
READ assignments AS JSON (
  agent STRING NOT NULL, account STRING, online BOOLEAN, timestamp BIGINT,
  tests ARRAY<STRUCT<id: BIGINT, name: STRING, kind: STRING, target: STRING, every_seconds: BIGINT>>
)
SUFFIX MONTH (at)
AS
SELECT record.timestamp AS at, agent, account, online, timestamp_millis(timestamp) AS last_seen, tests
FROM assignments
