"""OpenLineage: the names of datasets, and events of the runs of streams."""
