"""Closes what tests create, since Python warns of a database connection that nobody closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest.mock import patch


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closing_instances(created: type[Any]) -> Iterator[None]:
    """Closes all instances of a class, and of its subclasses, that are created in the block."""
    instances: list[_Closable] = []
    create = created.__init__

    def remember(self: _Closable, *args: Any, **options: Any) -> None:
        instances.append(self)
        create(self, *args, **options)

    with patch.object(created, "__init__", remember):
        yield
    for one in instances:
        one.close()
