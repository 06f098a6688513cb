"""The declarations of a project as JSON, for the page's server."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import lru_cache
from threading import Lock
from typing import Any

import orjson

from penstock.errors import DeclarationError
from penstock.settings import settings

log = logging.getLogger(__name__)

TIMEOUT = 60.0
_lock = Lock()


def read_catalog(spec: str) -> bytes:
    """The document of `python -m penstock.catalog`, cached by the hash of the files.

    Raises:
        DeclarationError: the process fails, or takes too long.
    """
    # Requests that arrive during the process wait for its result.
    with _lock:
        return _run(spec)


def sinks(spec: str) -> dict[str, dict[str, Any]]:
    """Declared sinks by name; see `penstock.catalog.listing.json_rows`."""
    return {row["name"]: row for row in _document(spec)["declared"] if row["kind"] == "sink"}


def streams(spec: str) -> dict[str, dict[str, Any]]:
    """Declared streams that write to topics, by name, likewise."""
    return {row["name"]: row for row in _document(spec)["declared"] if row["kind"] == "stream"}


def panels(spec: str) -> dict[str, dict[str, Any]]:
    """Declared panels by name; see `penstock.catalog.listing.json_panel`."""
    return {panel["name"]: panel for panel in _document(spec)["panels"]}


@lru_cache(maxsize=1)
def _document(spec: str) -> dict[str, Any]:
    """Parsed once: every viewer of a panel asks for it every few seconds."""
    document: dict[str, Any] = orjson.loads(read_catalog(spec))
    return document


@lru_cache(maxsize=1)
def _run(spec: str) -> bytes:  # noqa: ARG001
    return run_on_project("penstock.catalog")


def run_on_project(module: str) -> bytes:
    """What a module prints that reads the declarations on the disk.

    It has a process of its own: the api-server must not import a project's code, and would keep its first version.

    Raises:
        DeclarationError: The process fails, or takes too long.
    """
    env = {**os.environ, "PYTHONPATH": settings().python_path}
    command = [sys.executable, "-m", module]
    try:
        done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as e:
        raise DeclarationError(f"the declarations were not read within {TIMEOUT:g} s") from e
    except subprocess.CalledProcessError as e:
        raise DeclarationError("the declarations cannot be read", got=e.stderr.decode(errors="replace").strip()) from e
    if done.stderr:
        log.error("errors in declarations: %s", done.stderr.decode(errors="replace").strip())
    return done.stdout
