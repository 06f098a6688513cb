"""Records: decoding, validation and combining in columns, by DuckDB."""
