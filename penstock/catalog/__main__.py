"""`python -m penstock.catalog`: the catalog and its drawing as JSON, for who must not run a project's code itself.

What is wrong is counted there, and told on standard error.
"""

from __future__ import annotations

import sys

import orjson

from penstock.catalog.listing import document
from penstock.catalog.survey import survey
from penstock.errors import PenstockError

if __name__ == "__main__":
    try:
        found, wrong = survey()
    except PenstockError as e:
        sys.exit(f"error: {e}")
    for mistake in wrong:
        sys.stderr.write(f"error: {mistake}\n")
    sys.stdout.buffer.write(orjson.dumps({**document(found), "wrong": len(wrong)}))
