CAPTURE INTO tests PARTITIONS 4
FROM mysql demo
KEY (id)
CURSOR updated_at
DELETED WHEN (deleted)
AS
SELECT t.id, t.account_id, t.name, t.kind, t.target, t.every_seconds, t.enabled, t.deleted,
  -- With what it asks of agents, so that nobody sees a test without its labels: {"region": "eu"}
  (SELECT CONCAT('{', COALESCE(GROUP_CONCAT(
      CONCAT(JSON_QUOTE(l.name), ': ', JSON_QUOTE(l.value)) ORDER BY l.name SEPARATOR ', '), ''), '}')
    FROM labels l WHERE l.test_id = t.id AND NOT l.deleted) AS labels,
  -- A label that changes, or is marked as deleted, changes its test.
  GREATEST(t.updated_at, COALESCE(
    (SELECT MAX(l.updated_at) FROM labels l WHERE l.test_id = t.id), t.updated_at)) AS updated_at
FROM tests t
