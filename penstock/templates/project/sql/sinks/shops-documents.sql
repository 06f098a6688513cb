-- Shops as they are now, as documents.
UPSERT INTO mongodb.shop.shops
READ shops AS JSON (id BIGINT NOT NULL, name STRING, updated_at STRING)
KEY (id)
TOMBSTONES DELETE (get_json_object(string(record.key), '$.id'))
AS
SELECT id, upper(name) AS name, try_to_timestamp(updated_at) AS updated_at
FROM shops
