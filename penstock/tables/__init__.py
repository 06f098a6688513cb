"""Compacted topics as tables: the latest value of each key, on disk, without Spark."""
