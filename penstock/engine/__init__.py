"""Spark: records in, a query per stream, batches out, checkpoints."""
