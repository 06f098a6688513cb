"""Kafka: topics as declared, transactional output, offsets."""
