"""`python -m penstock.catalog`: the catalog and its drawing as JSON, for who must not run a project's code itself.

What is wrong is counted there, and told on standard error. With the name of an app: what of it can be read.
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.catalog.listing import document
from penstock.catalog.partial import of_app, survey
from penstock.errors import PenstockError
from penstock.host.child_output import output, tell


def told_of(app: str) -> dict[str, Any]:
    """names: of what the app runs; streams: whether Spark runs it; wrong: in its files; others: in those of other
    systems, which may declare streams of it as well."""
    found, wrong = survey(first=app)
    mine = of_app(app, found, wrong)
    names = [one.name for one in found.apps.get(app, ())]
    return {
        "names": names,
        "streams": any(name in found.streams for name in names),
        "wrong": [str(e) for e in mine],
        "others": [str(e) for e in wrong if e not in mine and (e.path.suffix == ".py" or e.folder == "sinks")],
    }


if __name__ == "__main__":
    out = output()
    try:
        if len(sys.argv) > 1:
            told = told_of(sys.argv[1])
        else:
            found, wrong = survey()
            told = {**document(found), "wrong": len(wrong)}
            for mistake in wrong:
                print(f"error: {mistake}", file=sys.__stderr__)
    except PenstockError as e:
        sys.exit(f"error: {e}")
    tell(out, told)
