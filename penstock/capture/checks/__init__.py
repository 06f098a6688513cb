"""What must hold for a capture to be exact: column types, ordering, triggers; and the caveats that remain."""
