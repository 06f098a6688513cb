"""Accounts and their tests, as the captures of the demo database tell them."""
