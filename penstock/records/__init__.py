"""What a record is: one definition, in SQL of DuckDB, for streams, dead letters, quality rules, archives and tests."""
