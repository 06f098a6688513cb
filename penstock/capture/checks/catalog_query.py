"""Queries of a database's own catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.capture.polling.keyset_queries import PARAMETER, SourceQuery
from penstock.capture.source.base import SourceDatabase
from penstock.capture.source.statement_sql import POSTGRES_TABLE


def catalog_rows(database: SourceDatabase, sql: str, values: Mapping[str, str | None]) -> list[tuple[Any, ...]]:
    """Rows of a query in which `{m}name` stands for a parameter and `{found}` for the table in PostgreSQL."""
    sql = sql.replace("{found}", POSTGRES_TABLE)
    used = {name: values[name] for name in re.findall(r"\{m\}(\w+)", sql)}
    return list(database.page(SourceQuery(sql.replace("{m}", PARAMETER), used)).rows)
