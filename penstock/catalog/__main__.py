"""`python -m penstock.catalog [APP]`: the catalog and its drawing as JSON, for processes that must not run a project's
code themselves.

Mistakes are counted in the JSON and printed on standard error. With an app: what of it can be read.
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.catalog.listing import document
from penstock.catalog.partial import load_partial, mistakes_of_app
from penstock.catalog.replacements import is_replaceable, replacement_obstacle
from penstock.errors import PenstockError
from penstock.host.child_output import redirect_stdout, write_result


def app_summary(app: str) -> dict[str, Any]:
    """What can be read of an app.

    Returns:
        names: of what the app runs. streams: whether Spark runs any of it. replaceable: the streams, and the sinks, of
        which a new version can be built beside the running one. irreplaceable: why other sinks cannot. schemas:
        subject, text and kind of the schemas that it writes by. topics: arguments of those that its streams read and
        write, retention in seconds. wrong: mistakes in its files. others: mistakes in other files that may
        declare streams of it as well.
    """
    catalog, broken = load_partial(first=app)
    mine = mistakes_of_app(app, catalog, broken)
    names = [one.name for one in catalog.apps.get(app, ())]
    obstacles = {name: replacement_obstacle(catalog, name) for name in names if name in catalog.sinks}
    return {
        "names": names,
        "streams": any(name in catalog.streams for name in names),
        "replaceable": [name for name in names if is_replaceable(catalog, name)],
        "irreplaceable": {name: obstacle for name, obstacle in obstacles.items() if obstacle},
        "schemas": [list(schema) for schema in catalog.written_schemas(app)],
        "topics": [
            {
                "name": topic.name,
                "partitions": topic.partitions,
                "compacted": topic.compacted,
                "retention": topic.retention.total_seconds(),
                "config": dict(topic.config),
            }
            for topic in catalog.topics_of(app)
        ],
        "wrong": [str(e) for e in mine],
        "others": [
            str(e)
            for e in broken
            if e not in mine and (e.path.suffix == ".py" or e.path.parent.name in ("sinks", "streams"))
        ],
    }


if __name__ == "__main__":
    out = redirect_stdout()
    try:
        if len(sys.argv) > 1:
            answer = app_summary(sys.argv[1])
        else:
            catalog, broken = load_partial()
            answer = {**document(catalog), "wrong": len(broken)}
            for mistake in broken:
                print(f"error: {mistake}", file=sys.__stderr__)
    except PenstockError as e:
        sys.exit(f"error: {e}")
    write_result(out, answer)
