"""Streams whose checkpoints are kept elsewhere, and moved."""
