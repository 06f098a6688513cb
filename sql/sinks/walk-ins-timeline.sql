-- Every walk-in, by month. It gets its contact once that is known. A record that is read again is the same document.
UPSERT INTO elasticsearch.walk-ins-timeline
READ walk-ins
READ enriched-walk-ins
KEY (device, business, at)
VERSION (has_contact)
SUFFIX MONTH (at)
TOMBSTONES IGNORE
AS
SELECT timestamp_millis(timestamp) AS at, timestamp_millis(since) AS since, device, business,
  CAST(NULL AS STRING) AS contact, 0 AS has_contact
FROM `walk-ins`
UNION ALL
SELECT timestamp_millis(timestamp) AS at, timestamp_millis(since) AS since, device, business, contact, 1 AS has_contact
FROM `enriched-walk-ins`
