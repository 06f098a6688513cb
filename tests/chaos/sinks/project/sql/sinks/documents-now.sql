-- The newest state of each item under a composite key, which tombstones say by the record's key.
UPSERT INTO mongodb.chaos.items
READ items AS JSON (
  id BIGINT NOT NULL, born BIGINT NOT NULL, name STRING, state STRING, level STRING, label STRING, gone BOOLEAN, n BIGINT,
  at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
KEY (id, born)
INDEX (name)
TOMBSTONES DELETE (get_json_object(string(record.key), '$.id'), get_json_object(string(record.key), '$.born'))
DELETED WHEN (gone)
AS
SELECT id, born, name, level, map(label, n) AS labels, n, gone FROM items
