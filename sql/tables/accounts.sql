CREATE TABLE accounts (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(200) NOT NULL,
  plan ENUM('trial', 'standard', 'enterprise') NOT NULL DEFAULT 'trial',
  active BOOLEAN NOT NULL DEFAULT TRUE,
  deleted BOOLEAN NOT NULL DEFAULT FALSE,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  KEY updated (updated_at, id)
);

INSERT INTO accounts (name, plan) VALUES ('Acme', 'enterprise'), ('Globex', 'standard'), ('Initech', 'trial');
