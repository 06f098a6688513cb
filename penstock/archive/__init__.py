"""Archives: topics kept in an object store. Records are written exactly once, in Parquet files by hour."""
