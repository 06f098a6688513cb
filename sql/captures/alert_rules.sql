CAPTURE INTO alert-rules PARTITIONS 4
FROM mysql demo
KEY (id)
CURSOR updated_at
DELETED WHEN (deleted)
RECONCILE EVERY 1 DAY
AS
SELECT * FROM alert_rules
