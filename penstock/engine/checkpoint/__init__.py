"""Checkpoints: batches and offsets, durability, ownership, repair by the commit marker."""
