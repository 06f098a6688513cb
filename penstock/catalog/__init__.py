"""Collects what is declared under jobs/ and sql/ and validates it together. Imports neither Spark nor a client."""

from penstock.catalog.check import build
from penstock.catalog.find import discover, load
from penstock.catalog.model import Catalog, Supervised, Windowed
from penstock.catalog.survey import BrokenFile, apps, of_app, readable, survey

__all__ = [
    "BrokenFile", "Catalog", "Supervised", "Windowed", "apps", "build", "discover", "load", "of_app", "readable",
    "survey",
]  # fmt: skip
