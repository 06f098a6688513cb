"""What happens when a batch fails: poison records, data loss, corrupt offsets, lack of memory."""
