"""Accounts and tests, captured from the demo database."""
