-- A composite key, and a version that is a number of the record.
UPSERT INTO elasticsearch.latest
READ events AS JSON (
  n BIGINT NOT NULL, sensor STRING, kind STRING, note STRING, level STRING, label STRING, parts ARRAY<STRING>,
  seq BIGINT, last BOOLEAN, at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
KEY (sensor, kind)
VERSION (seq)
DELETED WHEN (last)
AS
SELECT sensor, kind, seq, n, last FROM events
