CAPTURE INTO labels PARTITIONS 4
FROM mysql demo
KEY (test_id, name)
CURSOR updated_at
DELETED WHEN (deleted)
AS
SELECT * FROM labels
