-- Run by the server when it makes its data folder: the database whose tables the declared captures follow.
CREATE DATABASE IF NOT EXISTS demo;
GRANT ALL PRIVILEGES ON demo.* TO 'penstock'@'%';
-- Captures look at which transactions are open.
GRANT PROCESS ON *.* TO 'penstock'@'%';
