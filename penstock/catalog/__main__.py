"""`python -m penstock.catalog`: the catalog and its drawing as JSON, for who must not run a project's code itself."""

from __future__ import annotations

import sys

import orjson

from penstock.catalog.find import load
from penstock.catalog.listing import document
from penstock.errors import PenstockError

if __name__ == "__main__":
    try:
        found = document(load())
    except PenstockError as e:
        sys.exit(f"error: {e}")
    sys.stdout.buffer.write(orjson.dumps(found))
