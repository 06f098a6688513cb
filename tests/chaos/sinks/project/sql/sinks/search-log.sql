-- Each event but noise, in the index of its day.
INSERT INTO elasticsearch.events
READ events AS JSON (
  n BIGINT NOT NULL, sensor STRING, kind STRING, note STRING, level STRING, label STRING, parts ARRAY<STRING>,
  seq BIGINT, last BOOLEAN, at BIGINT NOT NULL
) EVENT TIME timestamp_millis(at)
SUFFIX DAY (at)
FIELDS (note KEYWORD)
AS
SELECT timestamp_millis(at) AS at, n, sensor, CASE kind WHEN 'a' THEN 'first' ELSE kind END AS kind, note
FROM events WHERE kind <> 'noise'
