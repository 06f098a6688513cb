CAPTURE INTO businesses PARTITIONS 4
FROM mysql demo
KEY (id)
CURSOR updated_at
DELETED WHEN (deleted)
AS
SELECT * FROM businesses
