"""The commit of a batch: delivery to every output, dead letters, late records."""
