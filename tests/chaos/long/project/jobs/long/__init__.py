"""Streams of the long chaos run: one of each kind."""
