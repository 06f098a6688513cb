"""Change capture by polling: a declared SQL statement becomes a compacted topic that equals its rows."""
