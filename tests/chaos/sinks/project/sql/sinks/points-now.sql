-- A point for each item, changed and deleted in its place.
UPSERT INTO influxdb.chaos.items
READ items AS JSON (
  id BIGINT NOT NULL, born BIGINT NOT NULL, name STRING, state STRING, level STRING, label STRING, gone BOOLEAN, n BIGINT,
  at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
TAGS (id)
TIME (born)
FIELDS (level INTEGER, name STRING, n INTEGER)
TOMBSTONES DELETE (
  get_json_object(string(record.key), '$.id'),
  timestamp_millis(cast(get_json_object(string(record.key), '$.born') AS BIGINT))
)
DELETED WHEN (gone)
AS
SELECT id, timestamp_millis(born) AS born, level, coalesce(name, '') AS name, n, gone FROM items
