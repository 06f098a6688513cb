"""Keeps drivers alive: leases, launch, adopt, drain, heartbeats, release. Neither Spark nor Airflow."""
