-- The newest state of each item, under the record's key.
UPSERT INTO elasticsearch.items
READ items AS JSON (
  id BIGINT NOT NULL, born BIGINT NOT NULL, name STRING, state STRING, level STRING, label STRING, gone BOOLEAN, n BIGINT,
  at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
FIELDS (state KEYWORD)
DELETED WHEN (gone)
AS
SELECT id, name, state, level, n, gone FROM items
