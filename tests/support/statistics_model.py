"""The figures of receipts computed without Spark, in exact arithmetic, to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

from jobs.metrics.statistics import quantile_names


def truncated(value: float, decimals: int) -> float:
    """As the definition has it: towards zero, through a scaled integer while that is exact."""
    scaled = value * 10**decimals
    return math.trunc(scaled) / 10**decimals if abs(scaled) < 2**53 else value


def order(value: float) -> tuple[bool, float]:
    """NaN after everything."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def plain(values: Sequence[float], quantiles: Sequence[float], decimals: int = 2) -> dict[str, Any]:
    """What a summary of these values must say: count, average, min, max, stddev and the quantiles."""
    n = len(values)
    ranks = sorted((truncated(v, decimals) for v in values), key=order)
    found: dict[str, Any] = {
        "count": n,
        "min": min(values, key=order),
        "max": max(values, key=order),
        **{
            name: next(v for k, v in enumerate(ranks, 1) if k / n >= q)
            for q, name in zip(quantiles, quantile_names(quantiles), strict=True)
        },
    }
    if all(map(math.isfinite, values)):
        mean = sum(map(Fraction, values)) / n
        found["average"] = float(mean)
        with suppress(OverflowError):  # of 1e300 and the like no double holds the square
            found["stddev"] = math.sqrt(sum((Fraction(v) - mean) ** 2 for v in values) / n)
    else:
        found["average"] = sum(values) / n
        found["stddev"] = math.nan
    return found
