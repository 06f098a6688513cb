"""Streams of the chaos tests."""
