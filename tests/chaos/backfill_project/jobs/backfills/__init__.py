"""Backfills, and a stream to rebuild, whose processes are killed."""
