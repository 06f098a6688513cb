"""Airflow's assets of what a project declares: topics, tables, indexes, collections, measurements, archives, views.

An asset's name is the same everywhere, such as `topic:receipts`, so that a DAG can name it without reading the
project: `Asset.ref(name="topic:receipts")`. Its URI has the server, as Airflow's providers write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from airflow.sdk import Asset, BaseOperator

from penstock.catalog import Catalog, partial_catalog
from penstock.errors import DeclarationError, PenstockError
from penstock.lineage.datasets import dataset_name, store_uri, topic_uri
from penstock.model.declaration import CatalogNode, Declared
from penstock.model.stream import Stream
from penstock.model.view import ServedView

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from penstock.catalog import Supervised

GROUP = "penstock"
# Number of parts of a table's path by engine: the database, PostgreSQL's schema, the table.
PATH_PARTS = {"mysql": 2, "postgres": 3}
# Ports that Airflow's providers add where there is none.
PORTS = {"mysql": 3306, "postgres": 5432}


class DeclaresLineage(BaseOperator):
    """An operator whose inlets and outlets are what its driver reads and writes, for Airflow's asset graph.

    When a task runs it has none: a run that ends says nothing about data, so it emits no asset events; and Airflow
    refuses to start a task while one of its assets is inactive, as after a change of an address. Airflow's OpenLineage
    provider asks the task for them by `get_openlineage_facets_on_start`.
    """

    declared_inlets: Sequence[Asset] = ()
    declared_outlets: Sequence[Asset] = ()

    def prepare_for_execution(self) -> Self:
        task = super().prepare_for_execution()
        task.declared_inlets, task.declared_outlets = task.inlets, task.outlets
        task.inlets, task.outlets = [], []
        return task

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """The datasets that its driver reads and writes, under the names that the streams' own events have."""
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset

        return OperatorLineage(
            inputs=[InputDataset(*dataset_name(asset.uri)) for asset in self.declared_inlets],
            outputs=[OutputDataset(*dataset_name(asset.uri)) for asset in self.declared_outlets],
        )


def stream_asset(name: str, output: str = "") -> Asset:
    """The asset that a stream or an archive writes, for the schedule of a DAG::

        from airflow.sdk import DAG, PartitionedAssetTimetable
        from penstock.airflow.assets import stream_asset

        with DAG("hourly_report", schedule=PartitionedAssetTimetable(assets=stream_asset("totals"))):
            ...

    It reads the declarations of the project. `Asset.ref(name="topic:totals")` does not.

    Args:
        name: Of the stream or archive.
        output: The topic or store, if the stream has several.

    Raises:
        DeclarationError: There is no such stream or output.
    """
    catalog, _ = partial_catalog()
    streams = {**catalog.disabled, **catalog.streams}
    if name not in streams:
        raise DeclarationError("no such stream", got=name, hint=f"take one of: {', '.join(sorted(streams)) or 'none'}")
    names = streams[name].output_names
    if (output and output not in names) or (not output and len(names) > 1):
        hint = f"name one of its outputs: {', '.join(names)}"
        raise DeclarationError(f"stream {name} has no such output", got=repr(output), hint=hint)
    [asset] = assets(catalog, [node for node in streams[name].writes if node.name == (output or names[0])])
    return asset


def output_assets(stream: Stream, catalog: Catalog) -> list[Asset]:
    """The assets that take the rows of a stream."""
    return list(assets(catalog, (node for node in stream.writes if node.name in stream.output_names)))


def lineage(catalog: Catalog, declared: Iterable[Supervised | Declared]) -> dict[str, Any]:
    """The arguments `inlets` and `outlets` of an operator for what its driver reads and writes."""
    reads: list[CatalogNode] = []
    writes: list[CatalogNode] = []
    for one in declared:
        if isinstance(one, ServedView):
            reads += one.view.reads
            writes.append(CatalogNode("view", one.view.name))
        else:
            reads += getattr(one, "reads", ())
            writes += getattr(one, "writes", ())
    return {"inlets": list(assets(catalog, reads)), "outlets": list(assets(catalog, writes))}


def assets(catalog: Catalog, nodes: Iterable[CatalogNode]) -> Iterator[Asset]:
    """The assets of nodes of the catalog, each once."""
    for node in dict.fromkeys(stored for one in nodes for stored in _stored(catalog, one)):
        name = node.name if node.kind == "store" else f"{node.kind}:{node.name}"
        yield Asset(name=name, uri=_uri(catalog, node), group=GROUP)


def _stored(catalog: Catalog, node: CatalogNode) -> Iterator[CatalogNode]:
    """What a node stands for: the topics of a pattern, what a declaration writes. Sources outside are left out."""
    match node.kind:
        case "topic" | "table" | "store" | "view":
            yield node
        case "pattern":
            yield from (CatalogNode("topic", name) for name in catalog.topics if re.fullmatch(node.name, name))
        case "archive" if node.name in catalog.archives:
            yield from catalog.archives[node.name].writes
        case "stream" if node.name in catalog.streams:
            yield from catalog.streams[node.name].writes


def _uri(catalog: Catalog, node: CatalogNode) -> str:
    match node.kind:
        case "topic":
            return topic_uri(node.name)
        case "view":
            return f"x-penstock://views/{node.name}"
        case "table":
            connection, _, table = node.name.partition(":")
            return _table_uri(catalog, connection, table)
        case _:
            return store_uri(node.name)


def _table_uri(catalog: Catalog, connection: str, table: str) -> str:
    """The URI of a captured table; the connection's name stands for the host if that is not known."""
    from penstock.capture.source import connections

    dialect = next(capture.dialect for capture in catalog.captures.values() if capture.connection == connection)
    host, database = connection, connection
    with suppress(PenstockError):
        url = connections.url(connection, dialect, ask=False)
        database = url.database or database
        if dialect in PORTS:
            host = f"{url.host}:{url.port or PORTS[dialect]}"
    if dialect not in PATH_PARTS:
        return f"{dialect}://{quote(database if database.startswith('/') else f'/{database}')}/{quote(table)}"
    defaults = [database, "public"][: PATH_PARTS[dialect] - 1]
    names = table.split(".")[-PATH_PARTS[dialect] :]
    path = [*defaults[: PATH_PARTS[dialect] - len(names)], *names]
    return f"{dialect}://{host}/{'/'.join(map(quote, path))}"
