"""Metrics of a running stream."""
