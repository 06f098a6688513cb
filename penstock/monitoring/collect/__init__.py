"""The metrics collector: probes of the host and the services."""
