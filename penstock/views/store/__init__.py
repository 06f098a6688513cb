"""The SQLite store of a view."""
