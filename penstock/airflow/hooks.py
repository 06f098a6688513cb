"""Hooks of Penstock's connection types, whose `test_connection` is behind the button in Airflow's form.

Drivers do not use them: they read the Connections that `penstock.settings` names.
"""

from __future__ import annotations

from typing import ClassVar

from airflow.sdk import BaseHook

from penstock.airflow import connection_probes as probes
from penstock.airflow.connections import connection_json
from penstock.errors import PenstockError
from penstock.settings.connections import AirflowConnection


class ConnectionHook(BaseHook):
    """A hook that tries what a Connection describes.

    Args:
        conn_id: The id of the Connection.
    """

    conn_name_attr = "conn_id"
    conn_type: ClassVar[str]
    hook_name: ClassVar[str]
    probe: ClassVar[staticmethod[[AirflowConnection], str]]

    def __init__(self, conn_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> AirflowConnection:
        """The fields of the Connection. SettingError if they cannot be read."""
        return AirflowConnection.parse(self.conn_id, connection_json(self.get_connection(self.conn_id)))

    def test_connection(self) -> tuple[bool, str]:
        """Connect within seconds: whether it serves, and what answered or what to do."""
        try:
            return True, type(self).probe(self.get_conn())
        except PenstockError as e:
            # Airflow tests a form under an id of its own.
            return False, probes.explained(e).replace(f"connection {self.conn_id}", "connection")


class KafkaHook(ConnectionHook):
    """Brokers and login of Kafka."""

    conn_type, hook_name = "penstock_kafka", "Penstock: Kafka"
    probe = staticmethod(probes.probe_kafka)


class DatabaseHook(ConnectionHook):
    """A captured database, or the control database."""

    conn_type, hook_name = "penstock_database", "Penstock: database"
    probe = staticmethod(probes.probe_database)


class ElasticsearchHook(ConnectionHook):
    """Elasticsearch, a store of sinks."""

    conn_type, hook_name = "penstock_elasticsearch", "Penstock: Elasticsearch"
    probe = staticmethod(probes.probe_elasticsearch)


class MongoHook(ConnectionHook):
    """MongoDB, a store of sinks and a source of backfills."""

    conn_type, hook_name = "penstock_mongodb", "Penstock: MongoDB"
    probe = staticmethod(probes.probe_mongodb)


class InfluxHook(ConnectionHook):
    """InfluxDB 1.x, a store of sinks."""

    conn_type, hook_name = "penstock_influxdb", "Penstock: InfluxDB 1.x"
    probe = staticmethod(probes.probe_influxdb)


class SchemaRegistryHook(ConnectionHook):
    """A schema registry."""

    conn_type, hook_name = "penstock_schema_registry", "Penstock: schema registry"
    probe = staticmethod(probes.probe_schema_registry)


class ObjectStoreHook(ConnectionHook):
    """The object store of archives and checkpoints."""

    conn_type, hook_name = "penstock_s3", "Penstock: object store (S3)"
    probe = staticmethod(probes.probe_object_store)


class ViewsHook(ConnectionHook):
    """The token of the views."""

    conn_type, hook_name = "penstock_views", "Penstock: views"
    probe = staticmethod(probes.probe_views)


class MaskKeyHook(ConnectionHook):
    """A key of masks."""

    conn_type, hook_name = "penstock_mask_key", "Penstock: key of masks"
    probe = staticmethod(probes.probe_mask_key)


class WebhookHook(ConnectionHook):
    """The webhook of alerts."""

    conn_type, hook_name = "penstock_webhook", "Penstock: webhook of alerts"
    probe = staticmethod(probes.probe_webhook)
