-- A test runs on the agents of its account that have every label it names.
CREATE TABLE tests (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  account_id BIGINT UNSIGNED NOT NULL,
  name VARCHAR(200) NOT NULL,
  kind ENUM('http', 'dns', 'ping', 'page') NOT NULL,
  target VARCHAR(500) NOT NULL,
  every_seconds INT UNSIGNED NOT NULL DEFAULT 600,
  enabled BOOLEAN NOT NULL DEFAULT TRUE,
  deleted BOOLEAN NOT NULL DEFAULT FALSE,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  KEY account (account_id),
  KEY updated (updated_at, id)
);

INSERT INTO tests (account_id, name, kind, target, every_seconds) VALUES
  (1, 'Shop front', 'http', 'https://shop.acme.example/', 300),
  (1, 'Name servers', 'dns', 'acme.example', 600),
  (2, 'Intranet', 'page', 'https://intra.globex.example/', 600);
