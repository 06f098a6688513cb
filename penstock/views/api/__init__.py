"""The REST API of views."""
