-- Alert rules as they are now.
UPSERT INTO elasticsearch.alert-rules
READ alert-rules AS JSON (
  id BIGINT NOT NULL, account_id BIGINT, metric STRING, comparison STRING, threshold STRING, window_seconds BIGINT,
  min_count BIGINT, labels STRING, enabled INT, updated_at STRING
)
KEY (id)
TOMBSTONES DELETE (get_json_object(string(record.key), '$.id'))
AS
SELECT id, account_id, metric, comparison, try_cast(threshold AS DOUBLE) AS threshold, window_seconds,
  min_count, from_json(labels, 'MAP<STRING, STRING>') AS labels, enabled = 1 AS enabled,
  try_to_timestamp(updated_at) AS updated_at
FROM `alert-rules`
