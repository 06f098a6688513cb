"""What Airflow reads about this package as one of its providers: `airflow providers get penstock`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        "operators": modules("operators", "commands", "captures"),
        "triggers": modules("triggers"),
        "hooks": modules("hooks"),
        "connection-types": [
            _connection_type(
                "kafka",
                "KafkaHook",
                "Penstock: Kafka",
                hidden=["schema", "port"],
                labels={"host": "Bootstrap servers"},
                placeholders={"host": "broker-1:9092,broker-2:9092", "login": "the SASL user, if any"},
                fields={
                    "security.protocol": _choice("Security protocol", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
                    "sasl.mechanism": _choice("SASL mechanism", "SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"),
                    "ssl.ca.location": _text("File of the CAs", "PEM, the same path on all hosts"),
                    "ssl.certificate.location": _text("File of the client certificate", "PEM"),
                    "ssl.key.location": _text("File of its key", "PEM (PKCS#8)"),
                    "ssl.key.password": _text("Password of the key", secret=True),
                },
            ),
            _connection_type(
                "database",
                "DatabaseHook",
                "Penstock: database",
                labels={"schema": "Database"},
                fields={"dialect": _choice("Dialect", "mysql", "postgres", "sqlite")},
            ),
            _connection_type(
                "elasticsearch",
                "ElasticsearchHook",
                "Penstock: Elasticsearch",
                hidden=["extra"],
                labels={"schema": "Protocol"},
                placeholders={"schema": "https", "port": "9200"},
            ),
            _connection_type(
                "mongodb",
                "MongoHook",
                "Penstock: MongoDB",
                labels={"schema": "Database of the login"},
                placeholders={"host": "one host, or host-1:27017,host-2:27017", "schema": "admin"},
                fields={"srv": _flag("SRV record of the host"), "ssl": _flag("TLS")},
            ),
            _connection_type(
                "influxdb",
                "InfluxHook",
                "Penstock: InfluxDB 1.x",
                hidden=["extra"],
                labels={"schema": "Protocol"},
                placeholders={"schema": "https", "port": "8086"},
            ),
            _connection_type(
                "schema_registry",
                "SchemaRegistryHook",
                "Penstock: schema registry",
                hidden=["extra"],
                labels={"schema": "Protocol, or path of the API"},
                placeholders={"host": "https://registry.example", "port": "8081", "schema": "apis/ccompat/v7"},
            ),
            _connection_type(
                "s3",
                "ObjectStoreHook",
                "Penstock: object store (S3)",
                hidden=["host", "port", "schema"],
                labels={"login": "Access key", "password": "Secret of the key"},
                fields={
                    "endpoint_url": _text("Endpoint", "https://host:port; empty for AWS"),
                    "region_name": _text("Region"),
                },
            ),
            _connection_type(
                "views",
                "ViewsHook",
                "Penstock: views",
                hidden=["login", "extra"],
                labels={"password": "Token", "host": "Host, for the test"},
                placeholders={"host": "empty: PENSTOCK_VIEWS_HOST", "schema": "https"},
            ),
            _connection_type(
                "mask_key",
                "MaskKeyHook",
                "Penstock: key of masks",
                hidden=["host", "port", "schema", "login", "extra"],
                labels={"password": "Key, 32 random bytes in base64"},
            ),
            _connection_type(
                "webhook",
                "WebhookHook",
                "Penstock: webhook of alerts",
                hidden=["host", "port", "schema", "login", "extra"],
                labels={"password": "URL"},
            ),
        ],
    }


def _connection_type(
    kind: str,
    hook: str,
    title: str,
    *,
    hidden: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    placeholders: Mapping[str, str] | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """A connection type as a provider declares it: the form, and the hook behind its button."""
    behaviour = {"hidden-fields": [*hidden], "relabeling": labels or {}, "placeholders": placeholders or {}}
    declared = {
        "connection-type": f"penstock_{kind}",
        "hook-class-name": f"penstock.airflow.hooks.{hook}",
        "hook-name": title,
        "ui-field-behaviour": behaviour,
    }
    return declared | ({"conn-fields": fields} if fields else {})


def _choice(label: str, *values: str) -> dict[str, Any]:
    return {"label": label, "schema": {"type": ["string", "null"], "enum": [*values, None]}}


def _text(label: str, description: str = "", *, secret: bool = False) -> dict[str, Any]:
    schema = {"type": ["string", "null"], **({"format": "password"} if secret else {})}
    return {"label": label, "schema": schema, **({"description": description} if description else {})}


def _flag(label: str) -> dict[str, Any]:
    return {"label": label, "schema": {"type": ["boolean", "null"]}}
