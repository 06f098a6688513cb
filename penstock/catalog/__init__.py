"""Collects what is declared under jobs/ and sql/ and validates it together. Imports neither Spark nor a client."""

from penstock.catalog.catalog import Catalog, HeartbeatTopic, Reader, Supervised, Windowed, Writer
from penstock.catalog.discovery import discover, load
from penstock.catalog.partial import BrokenFile, apps, of_app, readable, survey
from penstock.catalog.validation import build

__all__ = [
    "BrokenFile",
    "Catalog",
    "HeartbeatTopic",
    "Reader",
    "Supervised",
    "Windowed",
    "Writer",
    "apps",
    "build",
    "discover",
    "load",
    "of_app",
    "readable",
    "survey",
]  # fmt: skip
