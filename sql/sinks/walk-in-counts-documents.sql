-- How often each contact has walked in at each business, as it is now, as documents.
UPSERT INTO mongodb.penstock.walk-in-counts
READ walk-in-counts AS JSON (business STRING NOT NULL, contact STRING NOT NULL, count BIGINT NOT NULL)
KEY (business, contact)
INDEX (contact)
TOMBSTONES DELETE (
  get_json_object(string(record.key), '$.business'), get_json_object(string(record.key), '$.contact')
)
AS
SELECT business, contact, count FROM `walk-in-counts`
