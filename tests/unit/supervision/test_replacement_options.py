"""Options of a replacement as a command and a form give them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import ReplacementRefused
from penstock.supervision.replacement_options import expectation_text, replacement_options

DEFAULT = {
    "from": None,
    "rate": None,
    "write": "differing",
    "expect": None,
    "cut": "auto",
    "in_place": False,
    "archive": True,
}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        ({"begin": datetime(2026, 1, 31, tzinfo=UTC)}, {"from": 1_769_817_600_000}),
        ({"rate": 5000, "write": "all", "cut": "manual"}, {"rate": 5000, "write": "all", "cut": "manual"}),
        ({"expect": "equal", "in_place": True}, {"expect": {"equal": True, "except": []}, "in_place": True}),
        ({"expect": " equal-except:a, b,a "}, {"expect": {"equal": True, "except": ["a", "b"]}}),
    ],
)
def test_options(given: dict[str, Any], options: dict[str, Any]) -> None:
    assert replacement_options(**given) == DEFAULT | options


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"begin": datetime(9999, 1, 1, tzinfo=UTC)},
            "in the future; got: 9999-01-01T00:00:00.0000; hint: give a time",
        ),
        ({"rate": 0}, "no rate; got: 0; hint: give records per second"),
        ({"rate": float("nan")}, "no rate; got: nan"),
        ({"write": "some"}, "no such write; got: some; hint: take one of differing, all, none"),
        ({"cut": "now"}, "no such cut; got: now; hint: take one of auto, manual"),
        ({"expect": "same"}, "no expectation of a replacement; got: same; hint: write equal, or equal-except:COLUMN"),
        ({"expect": "equal-except:"}, "no expectation of a replacement; got: equal-except:"),
        ({"expect": "equal-except:a,,b"}, "no expectation of a replacement; got: equal-except:a,,b"),
    ],
)
def test_what_is_no_option_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ReplacementRefused, match=why):
        replacement_options(**given)


@pytest.mark.parametrize("text", ["equal", "equal-except:a,b"])
def test_an_expectation_is_shown_as_it_is_written(text: str) -> None:
    assert expectation_text(replacement_options(expect=text)["expect"]) == text
    assert expectation_text(None) == "none"
