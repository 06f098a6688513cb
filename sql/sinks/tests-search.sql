-- Tests as they are now.
UPSERT INTO elasticsearch.tests
READ tests AS JSON (
  id BIGINT NOT NULL, account_id BIGINT, name STRING, kind STRING, target STRING, every_seconds BIGINT, enabled INT,
  updated_at STRING
)
KEY (id)
TOMBSTONES DELETE (get_json_object(string(record.key), '$.id'))
AS
SELECT id, account_id, name, kind, target, every_seconds, enabled = 1 AS enabled,
  try_to_timestamp(updated_at) AS updated_at
FROM tests
