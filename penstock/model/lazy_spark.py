"""Spark's functions and types, imported when first used: a declaration is read where there is no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812
else:

    class _Lazy:
        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            import importlib

            return getattr(importlib.import_module(self._module), name)

    F = _Lazy("pyspark.sql.functions")
    T = _Lazy("pyspark.sql.types")

__all__ = ["F", "T"]
