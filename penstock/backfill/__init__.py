"""Backfills: an interval of an archive, or another store, brought into a topic; taken up again, paced and verified."""
