-- Per window and account: an alert if the metric of its browser sessions is over (or under) the threshold, on average,
-- and there are so many of them. labels: what a session must have, {"region": "eu"}.
CREATE TABLE alert_rules (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  account_id BIGINT UNSIGNED NOT NULL,
  metric VARCHAR(100) NOT NULL,
  comparison ENUM('over', 'under') NOT NULL DEFAULT 'over',
  threshold DECIMAL(20, 6) NOT NULL,
  window_seconds INT UNSIGNED NOT NULL DEFAULT 300,
  min_count INT UNSIGNED NOT NULL DEFAULT 1,
  labels VARCHAR(2000) NOT NULL DEFAULT '{}',
  enabled BOOLEAN NOT NULL DEFAULT TRUE,
  deleted BOOLEAN NOT NULL DEFAULT FALSE,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  KEY account (account_id),
  KEY updated (updated_at, id)
);

INSERT INTO alert_rules (account_id, metric, threshold) VALUES (1, 'pageLoadTime', 4.5), (2, 'pageLoadTime', 8);
