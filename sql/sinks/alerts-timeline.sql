-- Every alert, by the month in which its window ended.
INSERT INTO elasticsearch.alerts-timeline
READ alerts AS JSON (
  account STRING NOT NULL, rule BIGINT NOT NULL, metric STRING, comparison STRING, threshold DOUBLE, value DOUBLE,
  count BIGINT, window_start BIGINT, window_end BIGINT NOT NULL
)
SUFFIX MONTH (at)
AS
SELECT timestamp_millis(window_end) AS at, account, rule, metric, comparison, threshold, value, count,
  timestamp_millis(window_start) AS window_start
FROM alerts
