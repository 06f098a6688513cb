-- Items that are gone stay, marked.
UPSERT INTO mongodb.chaos.marked
READ items AS JSON (
  id BIGINT NOT NULL, born BIGINT NOT NULL, name STRING, state STRING, level STRING, label STRING, gone BOOLEAN, n BIGINT,
  at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
TOMBSTONES MARK
DELETED WHEN (gone)
AS
SELECT id, name, n, gone FROM items
