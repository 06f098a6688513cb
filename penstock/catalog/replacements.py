"""Which streams and sinks can be replaced by a new version beside the running one."""

from __future__ import annotations

from penstock.catalog.catalog import Catalog


def is_replaceable(catalog: Catalog, name: str) -> bool:
    """Whether a new version of what an app runs can be built beside the running one."""
    if name not in catalog.streams.keys() - catalog.archives.keys():
        return False
    return name not in catalog.sinks or not replacement_obstacle(catalog, name)


def replacement_obstacle(catalog: Catalog, sink: str) -> str:
    """Why the documents of a sink cannot be built anew beside those that readers see; empty if they can."""
    stream = catalog.streams.get(sink)
    if stream is None:
        return "its store has no URL"
    targets = set(stream.output_names)
    if others := sorted(o.name for o in catalog.streams.values() if o is not stream and targets & set(o.output_names)):
        return f"{', '.join(targets)} is written by {', '.join(others)}, too"
    return next(filter(None, (output.replacement_obstacle for output in stream.outputs.values())), "")
