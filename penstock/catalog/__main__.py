"""`python -m penstock.catalog [APP]`: the catalog and its drawing as JSON, for processes that must not run a project's
code themselves.

Mistakes are counted in the JSON and printed on standard error. With an app: what of it can be read.
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.catalog.listing import document
from penstock.catalog.partial import load_partial, mistakes_of_app
from penstock.errors import PenstockError
from penstock.host.child_output import redirect_stdout, write_result


def app_summary(app: str) -> dict[str, Any]:
    """What can be read of an app.

    Returns:
        names: of what the app runs. streams: whether Spark runs any of it. replaceable: the streams that are neither
        sinks nor archives. schemas: subject, text and kind of the
        schemas that it writes by. wrong: mistakes in its files. others: mistakes in files of other folders that may
        declare streams of it as well.
    """
    catalog, broken = load_partial(first=app)
    mine = mistakes_of_app(app, catalog, broken)
    names = [one.name for one in catalog.apps.get(app, ())]
    return {
        "names": names,
        "streams": any(name in catalog.streams for name in names),
        "replaceable": [
            n for n in names if n in catalog.streams.keys() - catalog.sinks.keys() - catalog.archives.keys()
        ],
        "schemas": [list(schema) for schema in catalog.written_schemas(app)],
        "wrong": [str(e) for e in mine],
        "others": [
            str(e) for e in broken if e not in mine and (e.path.suffix == ".py" or e.folder in ("sinks", "streams"))
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
