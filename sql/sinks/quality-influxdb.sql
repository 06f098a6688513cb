-- Topic quality: a measurement for each topic with the fields `valid` and `invalid`, a point for each second, updated
-- in place. Counts of seconds that InfluxDB does not have, the years 1677 to 2262, are left out.
UPSERT INTO influxdb.penstock
READ metrics AS TEXT
MEASUREMENT (topic)
TIME (at)
FIELDS (valid INTEGER, invalid INTEGER)
TOMBSTONES IGNORE
BATCH 100000 EVERY 10 SECONDS
APP quality
AS
SELECT k.topic AS topic,
  CASE WHEN k.window BETWEEN -9223372036854 AND 9223372036854 THEN timestamp_millis(k.window) END AS at,
  CASE k.status WHEN 'valid' THEN n END AS valid,
  CASE k.status WHEN 'invalid' THEN n END AS invalid
FROM (
  SELECT from_json(string(record.key), 'topic STRING, window BIGINT, status STRING') AS k, try_cast(text AS BIGINT) AS n
  FROM metrics
)
WHERE k.topic RLIKE r'\A[a-zA-Z0-9._-]{1,249}\z'
  AND k.window BETWEEN -9223372036854 AND 9223372036854
  AND k.status IN ('valid', 'invalid') AND n >= 0
