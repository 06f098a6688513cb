-- When each shop was last seen.
UPSERT INTO influxdb.shop.names
READ shops AS JSON (name STRING NOT NULL, seen BIGINT NOT NULL)
TAGS (name)
TIME (at)
FIELDS (seen INTEGER)
TOMBSTONES IGNORE
APP sinks
AS
SELECT name, timestamp_millis(seen) AS at, seen FROM shops
