"""The initial snapshot of a table, with parallel readers."""
