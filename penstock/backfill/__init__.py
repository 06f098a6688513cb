"""Backfills: an interval of an archive, or a collection, brought into a topic; taken up again, paced and verified."""
