-- Every change of a test, by month. A record that is read again is the same document.
INSERT INTO elasticsearch.tests-timeline
READ tests AS JSON (
  id BIGINT NOT NULL, account_id BIGINT, name STRING, kind STRING, target STRING, every_seconds BIGINT, enabled INT,
  updated_at STRING
)
SUFFIX MONTH (at)
AS
SELECT coalesce(try_to_timestamp(updated_at), record.timestamp) AS at, id, account_id, name, kind, target,
  every_seconds, enabled = 1 AS enabled
FROM tests
