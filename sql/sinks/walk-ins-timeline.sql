-- Every walk-in, in the index of its month. It gets its contact once that is known, and read again it is the same one.
UPSERT INTO elasticsearch.walk-ins-timeline
READ walk-ins AS JSON (
  device STRING NOT NULL, business STRING NOT NULL, since BIGINT NOT NULL, timestamp BIGINT NOT NULL
)
READ enriched-walk-ins AS JSON (
  device STRING NOT NULL, business STRING NOT NULL, since BIGINT NOT NULL, timestamp BIGINT NOT NULL,
  contact STRING NOT NULL
)
KEY (device, business, at)
VERSION (known)
SUFFIX MONTH (at)
TOMBSTONES IGNORE
AS
SELECT timestamp_millis(timestamp) AS at, timestamp_millis(since) AS since, device, business,
  CAST(NULL AS STRING) AS contact, 0 AS known
FROM `walk-ins`
UNION ALL
SELECT timestamp_millis(timestamp) AS at, timestamp_millis(since) AS since, device, business, contact, 1 AS known
FROM `enriched-walk-ins`
