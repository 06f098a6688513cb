-- Accounts as they are now, as documents.
UPSERT INTO mongodb.penstock.accounts
READ accounts AS JSON (id BIGINT NOT NULL, name STRING, plan STRING, active INT, updated_at STRING)
KEY (id)
TOMBSTONES DELETE (get_json_object(string(record.key), '$.id'))
AS
SELECT id, name, plan, active = 1 AS active, try_to_timestamp(updated_at) AS updated_at
FROM accounts
