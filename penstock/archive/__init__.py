"""Topics kept in an object store: written exactly once, closed hour by hour, read again and verified."""
