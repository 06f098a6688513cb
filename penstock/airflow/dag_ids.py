"""Ids of the DAGs whose permissions the operator page asks for."""

OPERATE_DAG = "operate_streams"
"""Who may trigger it may start and stop streams on the page."""
RELEASE_DAG = "release_streams"
"""Who may trigger it may release apps on the page."""
