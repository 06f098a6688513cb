-- A document for each part of an event, in collections that stay small: the embedded server reads all of one for each
-- write that has a version.
INSERT INTO mongodb.chaos.events
READ events AS JSON (
  n BIGINT NOT NULL, sensor STRING, kind STRING, note STRING, level STRING, label STRING, parts ARRAY<STRING>,
  seq BIGINT, last BOOLEAN, at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
SUFFIX HOUR (hour)
AS
SELECT n, timestamp_seconds(1700000000 + n div 300 * 3600) AS hour, sensor, part, map(label, n) AS labels
FROM events LATERAL VIEW explode(parts) AS part
