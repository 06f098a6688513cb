"""Access to the JVM of Spark; no other module touches it."""
