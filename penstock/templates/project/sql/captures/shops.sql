-- Of the embedded database; for another one name a connection, and set AIRFLOW_CONN_<NAME>.
CAPTURE INTO shops
FROM mysql demo
KEY (id)
CURSOR updated_at
DELETED WHEN (deleted)
AS
SELECT * FROM shops
