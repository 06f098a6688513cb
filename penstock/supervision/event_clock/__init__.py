"""Heartbeats that advance event time on idle topics."""
