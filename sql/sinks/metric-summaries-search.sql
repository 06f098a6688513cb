-- Summaries of receipts. They are absolute values, so the last one written of a window is valid.
UPSERT INTO elasticsearch.metric-summaries
READ metric-summaries AS JSON (
  environment STRING NOT NULL, metric STRING NOT NULL, window BIGINT NOT NULL, count BIGINT NOT NULL, average DOUBLE,
  min DOUBLE, max DOUBLE, stddev DOUBLE, p90 DOUBLE
)
KEY (environment, metric, window)
TOMBSTONES IGNORE
AS
SELECT environment, metric, window, timestamp_millis(window) AS at, count, average, min, max, stddev, p90
FROM `metric-summaries`
