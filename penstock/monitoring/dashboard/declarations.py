"""The declarations of a project as JSON, for the page's server."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock, Thread
from typing import Any

import orjson

from penstock.errors import DeclarationError
from penstock.model.declaration import Kind
from penstock.monitoring.dashboard.data_flow import DataFlow
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


@dataclass(frozen=True)
class Declarations:
    """What is declared.

    Attributes:
        rows: By name; see `penstock.catalog.listing.json_rows`.
        panels: By name; see `penstock.catalog.listing.json_panel`.
        flow: What feeds what.
    """

    rows: Mapping[str, Mapping[str, Any]]
    panels: Mapping[str, dict[str, Any]]
    flow: DataFlow

    def of_kind(self, kind: Kind) -> dict[str, Mapping[str, Any]]:
        """Declarations of a kind, by name."""
        return {name: row for name, row in self.rows.items() if row["kind"] == kind}

    @cached_property
    def delays(self) -> Mapping[str, int]:
        """By stream, how far its watermark is behind by declaration, in ms; none that is 0."""
        return {name: row["behind_ms"] for name, row in self.rows.items() if row["behind_ms"]}

    @cached_property
    def of_app(self) -> Mapping[str, list[str]]:
        """By app, the names of what its drivers run."""
        names: dict[str, list[str]] = {}
        for name, row in self.rows.items():
            names.setdefault(row["app"], []).append(name)
        return names


@lru_cache(maxsize=1)
def read_declarations(spec: str) -> Declarations:
    """What is declared, read once for all who ask.

    Args:
        spec: Hash of the files.

    Raises:
        DeclarationError: The process that reads the files fails, or takes too long.
    """
    document: dict[str, Any] = orjson.loads(read_catalog(spec))
    rows = {row["name"]: row for row in document["declared"]}
    panels = {panel["name"]: panel for panel in document["panels"]}
    return Declarations(rows, panels, DataFlow.of(document["graph"]))


class KnownDeclarations:
    """The declarations that were read last, for those who do not wait until they are read.

    Args:
        read: Reads the declarations of files by their hash.
        retry: Seconds until files that could not be read are tried again.
    """

    def __init__(self, read: Callable[[str], Declarations] = read_declarations, retry: float = 60.0) -> None:
        self._read, self._retry = read, retry
        self._lock = Lock()
        self._known: Declarations | None = None
        self._spec, self._failed_at = "", 0.0

    def newest(self, spec: str) -> Declarations | None:
        """What is known; None until anything is. Files of another hash are read in a thread."""
        with self._lock:
            if spec != self._spec or (self._failed_at and time.monotonic() - self._failed_at > self._retry):
                self._spec, self._failed_at = spec, 0.0
                Thread(target=self._learn, args=(spec,), daemon=True).start()
            return self._known

    def _learn(self, spec: str) -> None:
        try:
            declarations = self._read(spec)
        except (DeclarationError, ValueError, OSError) as e:
            log.warning("%s", e)
            with self._lock:
                if self._spec == spec:
                    self._failed_at = time.monotonic()
            return
        with self._lock:
            if self._spec == spec:
                self._known = declarations


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
