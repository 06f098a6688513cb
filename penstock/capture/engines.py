"""The engines that captures can read."""

from __future__ import annotations

from penstock.capture.database import Database
from penstock.capture.mysql import MySQL
from penstock.capture.postgres import PostgreSQL
from penstock.capture.sqlite import SQLite

ENGINES: dict[str, type[Database]] = {"mysql": MySQL, "postgres": PostgreSQL, "sqlite": SQLite}
