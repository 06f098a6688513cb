"""Settings of Java programs keep their characters, whether the program reads the file as Latin-1 or as UTF-8."""

from __future__ import annotations

import pytest

from penstock.java.properties import properties_text


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("/home/My Projects/a", r"k=/home/My\ Projects/a"),
        ("/home/Büro/€", r"k=/home/B\u00fcro/\u20ac"),
        ("😀", r"k=\ud83d\ude00"),
        ("a\\b:#!=", r"k=a\\b\:\#\!\="),
        ("a\nb\tc\x01", r"k=a\nb\tc" + "\x01"),
        ("127.0.0.1,%'\"$", "k=127.0.0.1,%'\"$"),
    ],
)
def test_a_value_is_escaped(value: str, line: str) -> None:
    assert properties_text({"k": value}) == f"{line}\n"


def test_a_key_is_escaped() -> None:
    assert properties_text({"a b": "c", "d": ""}) == "a\\ b=c\nd=\n"
