-- The largest sale of each shop and minute.
STREAM INTO largest-sales
READ sales AS JSON (shop STRING NOT NULL, amount BIGINT NOT NULL, at TIMESTAMP NOT NULL)
    EVENT TIME at
KEY (shop, start)
VALUE (amount, sales)
EMIT FINAL WINDOW 1 MINUTE GRACE 1 MINUTE
STATE PARTITIONS 2
PARTITIONS 1
APP kinds
AS
SELECT shop, unix_millis(window.start) AS start, max(amount) AS amount, count(*) AS sales
FROM sales
GROUP BY shop, window(event_time, '1 minute')
