"""From a stream declaration to a running Spark query."""
