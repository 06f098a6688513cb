-- A probe request counts for its business if its signal, in dBm, is at or above the threshold.
CREATE TABLE businesses (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(200) NOT NULL,
  threshold INT NOT NULL DEFAULT -70,
  deleted BOOLEAN NOT NULL DEFAULT FALSE,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  KEY updated (updated_at, id)
);

INSERT INTO businesses (name, threshold) VALUES
  ('Corner Café', -70), ('Book Barn', -65), ('Main Street Gym', -75);
