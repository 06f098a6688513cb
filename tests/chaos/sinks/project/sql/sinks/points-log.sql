-- A time series: a point for each event, told apart from all others by its number.
UPSERT INTO influxdb.chaos.events
READ events AS JSON (
  n BIGINT NOT NULL, sensor STRING, kind STRING, note STRING, level STRING, label STRING, parts ARRAY<STRING>,
  seq BIGINT, last BOOLEAN, at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
TAGS (sensor, kind)
TIME (time)
FIELDS (level INTEGER, n INTEGER)
VERSION NONE
TOMBSTONES IGNORE
AS
SELECT sensor, kind, timestamp_micros(1700000000000000 + n) AS time, level, n FROM events
