CAPTURE INTO shops PARTITIONS 4
FROM mysql till
KEY (id)
CURSOR updated_at
AS
SELECT s.id, s.name, s.updated_at FROM shops s JOIN towns t ON t.id = s.town_id
