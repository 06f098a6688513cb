"""Streams of the bank of checkpoints: the kinds that no example and no shipped stream has alone."""
