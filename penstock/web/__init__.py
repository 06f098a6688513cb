"""Checks that HTTP servers of Penstock share."""
