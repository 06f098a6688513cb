-- Labels that tests require of agents, as documents.
UPSERT INTO mongodb.penstock.labels
READ labels AS JSON (test_id BIGINT NOT NULL, name STRING NOT NULL, value STRING, updated_at STRING)
KEY (test_id, name)
TOMBSTONES DELETE (
  get_json_object(string(record.key), '$.test_id'), get_json_object(string(record.key), '$.name')
)
AS
SELECT test_id, name, value, try_to_timestamp(updated_at) AS updated_at
FROM labels
