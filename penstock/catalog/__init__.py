"""Collects what is declared under jobs/ and sql/ and validates it together. Imports neither Spark nor a client."""

from penstock.catalog.check import build
from penstock.catalog.find import discover, load
from penstock.catalog.model import Beaten, Catalog, Reader, Supervised, Windowed, Writer
from penstock.catalog.survey import BrokenFile, apps, of_app, readable, survey

__all__ = [
    "Beaten", "BrokenFile", "Catalog", "Reader", "Supervised", "Windowed", "Writer", "apps", "build", "discover",
    "load", "of_app", "readable", "survey",
]  # fmt: skip
