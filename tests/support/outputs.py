"""Outputs of tests."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.model.output import Delivery, Output

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class Heap(Output):
    """A store that takes a batch again and tells no row by a key."""

    delivery: ClassVar[Delivery] = "upsert"

    @property
    def name(self) -> str:
        return "heap"

    @property
    def keyed(self) -> bool:
        return False

    @property
    def store(self) -> Hashable:
        return self.name

    def columns(self) -> list[Column]:
        return []
