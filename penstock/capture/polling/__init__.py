"""Polls: keyset pages from the low watermark, by one thread per capture."""
