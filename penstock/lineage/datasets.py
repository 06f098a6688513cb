"""Names of what streams read and write: URIs for Airflow's assets, and OpenLineage's datasets, made of the URIs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import PenstockError
from penstock.model.declaration import CatalogNode
from penstock.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.model.stream import Stream

# Schemes of OpenLineage's naming specification whose datasets have a path as name; the others have names with dots.
PATHS = ("kafka", "s3", "elasticsearch", "x-penstock")


class DatasetName(NamedTuple):
    """A dataset, as OpenLineage names it: `kafka://host:9092` and the topic, `mysql://host:3306` and `shop.orders`."""

    namespace: str
    name: str


def topic_uri(topic: str) -> str:
    """The URI of a topic, with the first of the bootstrap servers.

    The id of the Connection stands for it if that names them: Airflow is not asked when DAGs are parsed.
    """
    s = settings()
    return f"kafka://{s.connection_ids.get('kafka_bootstrap') or s.bootstrap.partition(',')[0].strip()}/{topic}"


def store_uri(name: str) -> str:
    """The URI of an index, a collection, a measurement or an archive.

    Args:
        name: Of the output, such as `mongodb:shop.orders` or `bucket:lake/orders`.
    """
    kind, _, rest = name.partition(":")
    if kind == "bucket":
        return f"s3://{rest}"
    return f"{kind}://{_store_host(kind)}/{quote(rest.replace('.', '/', 1) if kind != 'elasticsearch' else rest)}"


def dataset_name(uri: str) -> DatasetName:
    """The dataset of a URI."""
    parts = urlsplit(uri)
    path = unquote(parts.path.strip("/"))
    if not parts.netloc:
        # A file of SQLite, and a table of it.
        file, _, table = unquote(parts.path).rpartition("/")
        return DatasetName(f"{parts.scheme}://{file}", table)
    return DatasetName(f"{parts.scheme}://{parts.netloc}", path if parts.scheme in PATHS else path.replace("/", "."))


def input_datasets(stream: Stream, topics: Iterable[str] = ()) -> Iterator[tuple[str, DatasetName]]:
    """The topics that a stream reads, each with the name of its input.

    Args:
        stream: The stream.
        topics: Topics that exist, for inputs of a pattern.
    """
    for name, input_ in stream.inputs.items():
        if input_.topic:
            yield name, dataset_name(topic_uri(input_.topic.name))
        else:
            matching = sorted(topic for topic in topics if re.fullmatch(input_.source, topic))
            yield from ((name, dataset_name(topic_uri(topic))) for topic in matching)


def node_dataset(node: CatalogNode) -> DatasetName:
    """The dataset of a topic or a store."""
    return dataset_name(topic_uri(node.name) if node.kind == "topic" else store_uri(node.name))


def _store_host(store: str) -> str:
    """Host and port of a store; the id of its Connection, or its name, if they are not known."""
    from penstock.sinks.core import connections

    if conn_id := settings().connection_ids.get(f"{store}_url"):
        return conn_id
    with suppress(PenstockError, AttributeError, LookupError, ValueError):
        if host := urlsplit(connections.url(store, connecting=False)).netloc.rpartition("@")[2]:
            return host
    return store
