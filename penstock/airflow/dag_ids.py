"""Ids of DAGs: the operator page asks for the permissions of the first two."""

OPERATE_DAG = "operate_streams"
"""Who may trigger it may start and stop streams on the page."""
RELEASE_DAG = "release_streams"
"""Who may trigger it may release apps on the page."""
REPLACE_DAG = "replace_stream"
"""Who may trigger it may let the code on the disk take the place of a running stream."""
