"""Decodes, validates and combines records in columns, by DuckDB."""
