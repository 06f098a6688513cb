"""Rows as records: encoding, transactions with the position, oversized rows."""
