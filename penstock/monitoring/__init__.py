"""Metrics, health, alerts and the data of the operator page."""
