"""Elasticsearch as a sink."""
