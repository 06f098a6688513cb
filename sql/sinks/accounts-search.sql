-- Accounts as they are now. The version is made of the record's own time, as a tombstone's is.
UPSERT INTO elasticsearch.accounts
READ accounts AS JSON (id BIGINT NOT NULL, name STRING, plan STRING, active INT, updated_at STRING)
KEY (id)
TOMBSTONES DELETE (get_json_object(string(record.key), '$.id'))
AS
SELECT id, name, plan, active = 1 AS active, try_to_timestamp(updated_at) AS updated_at
FROM accounts
