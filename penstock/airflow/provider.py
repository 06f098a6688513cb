"""What Airflow reads about this package as one of its providers: `airflow providers get penstock`."""

from __future__ import annotations

from typing import Any

from penstock import __version__

INTEGRATION = "Penstock"


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata, as `airflow/provider_info.schema.json` describes it.

    The plugin is an entry point of its own: named here too, Airflow would report it as registered twice where providers
    are not loaded lazily. The schema has no timetables; the plugin registers them.
    """

    def modules(*names: str) -> list[dict[str, Any]]:
        return [{"integration-name": INTEGRATION, "python-modules": [f"penstock.airflow.{name}" for name in names]}]

    return {
        "package-name": "penstock",
        "name": INTEGRATION,
        "description": "Streams on Spark and Kafka, supervised by Airflow.",
        "versions": [__version__],
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software", "streaming"]}],
        "operators": modules("operators", "commands"),
        "triggers": modules("triggers"),
    }
