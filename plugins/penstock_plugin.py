"""Registers the plugin where Penstock is on Python's path without being installed.

An installed Penstock has an entry point, and Airflow reports a plugin that it finds twice as an error.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="penstock"):
    from penstock.airflow.plugin import PenstockPlugin  # noqa: F401
