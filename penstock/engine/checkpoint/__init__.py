"""Checkpoints: layout, durability, ownership, recovery against the commit marker."""
