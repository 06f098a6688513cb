CAPTURE INTO labels PARTITIONS 4
FROM mysql demo
KEY (test_id, name)
CURSOR updated_at
DELETED WHEN (deleted)
RECONCILE EVERY 1 DAY
AS
SELECT * FROM labels
