-- A document for each part of an event.
INSERT INTO mongodb.chaos.events
READ events AS JSON (
  n BIGINT NOT NULL, sensor STRING, kind STRING, note STRING, level STRING, label STRING, parts ARRAY<STRING>,
  seq BIGINT, last BOOLEAN, at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
AS
SELECT n, sensor, part, map(label, n) AS labels FROM events LATERAL VIEW explode(parts) AS part
