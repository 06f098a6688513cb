"""Kafka: topic administration, transactional writers, dead letters and their replay."""
