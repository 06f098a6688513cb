"""Stores outside Kafka that take a stream's rows."""
