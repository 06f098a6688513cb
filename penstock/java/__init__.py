"""The Java runtime, jars and the ahead-of-time cache."""
