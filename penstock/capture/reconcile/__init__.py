"""Comparison of table and topic, and repair of what differs."""
