"""Checks of declarations that need no I/O."""
