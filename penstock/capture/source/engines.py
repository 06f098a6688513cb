"""The engines that captures can read."""

from __future__ import annotations

from penstock.capture.source.base import SourceDatabase
from penstock.capture.source.mysql import MySQL
from penstock.capture.source.postgres import PostgreSQL
from penstock.capture.source.sqlite import SQLite

ENGINES: dict[str, type[SourceDatabase]] = {"mysql": MySQL, "postgres": PostgreSQL, "sqlite": SQLite}
