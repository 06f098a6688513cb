-- What a test asks of an agent: the label's name must have this value.
CREATE TABLE labels (
  test_id BIGINT UNSIGNED NOT NULL,
  name VARCHAR(100) NOT NULL,
  value VARCHAR(200) NOT NULL,
  deleted BOOLEAN NOT NULL DEFAULT FALSE,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (test_id, name),
  KEY updated (updated_at, test_id, name)
);

INSERT INTO labels (test_id, name, value) VALUES (1, 'region', 'eu'), (3, 'office', 'Springfield'), (3, 'os', 'linux');
