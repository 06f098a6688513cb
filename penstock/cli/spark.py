"""Spark for commands that need it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session(name: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session of this process's own. conf: settings over those of drivers."""
    # Spark is more than most commands need to load.
    from penstock.engine.session import open_session

    _log_no_errors()
    spark = open_session(name, log_level="fatal", conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def short_session(name: str) -> Iterator[SparkSession]:
    """For a command that somebody waits for: a session of the JVM that the platform keeps, or one of its own."""
    from penstock.engine import shared_session
    from penstock.engine.session import INTERPRETED

    _log_no_errors()
    keeps = shared_session.is_ready()
    with shared_session.attached_command(name) if keeps else session(name, INTERPRETED) as spark:
        yield spark


def _log_no_errors() -> None:
    """Spark would log each error that the command tells again, with a page of Java."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
