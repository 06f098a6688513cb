"""Collects what is declared under jobs/ and sql/ and validates it together. Imports neither Spark nor a client."""

from penstock.catalog.catalog import (
    Catalog,
    HeartbeatReader,
    HeartbeatTopic,
    HeartbeatTopics,
    Supervised,
    UpstreamWriter,
)
from penstock.catalog.discovery import check_project, discover, load
from penstock.catalog.partial import (
    BrokenFile,
    apps,
    capture_connections,
    load_partial,
    mask_connections,
    mistakes_of_app,
    partial_catalog,
)
from penstock.catalog.partitions import Partitioned, PartitionedArchive, PartitionedStream, partitioned
from penstock.catalog.validation import build

__all__ = [
    "BrokenFile", "Catalog", "HeartbeatReader", "HeartbeatTopic", "HeartbeatTopics", "Partitioned",
    "PartitionedArchive", "PartitionedStream", "Supervised", "UpstreamWriter", "apps", "build", "capture_connections",
    "check_project", "discover", "load", "load_partial", "mask_connections",
    "mistakes_of_app", "partial_catalog", "partitioned",
]  # fmt: skip
