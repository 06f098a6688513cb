-- topic: receipts
-- format: json
-- schema: environment STRING NOT NULL, metric STRING NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL
environment <> '' AND metric RLIKE '^[a-z][A-Za-z0-9._:-]*$' AND timestamp > 0
