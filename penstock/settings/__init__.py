"""Typed settings, a class per concern, read from the environment once.

Each field is the variable ``PENSTOCK_<FIELD>`` in capitals, e.g. ``PENSTOCK_KAFKA_PORT=19092``, or the content of the
file of that name in the folder that ``PENSTOCK_SECRETS_DIR`` names, or ``<field>`` in the table ``tool.penstock`` of
the project's pyproject.toml. A variable takes precedence over a file.
docs/settings.md lists them all.
"""

from penstock.settings.kafka import KafkaSettings
from penstock.settings.process_settings import (
    BROKERS,
    CLUSTER_MARK,
    LIBRARY,
    PROJECT,
    SECRETS,
    Settings,
    misspelled_variables,
    settings,
)
from penstock.settings.spark import ExecutorResources, executors_here
from penstock.settings.types import Duration

__all__ = [
    "BROKERS", "CLUSTER_MARK", "LIBRARY", "PROJECT", "SECRETS", "Duration", "ExecutorResources", "KafkaSettings",
    "Settings", "executors_here", "misspelled_variables", "settings",
]  # fmt: skip
