"""Reads and writes of the control database, one module per concern."""
