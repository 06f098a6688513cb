"""The text that declares a stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.monitoring.dashboard.declared_source import MAX_SHOWN, DeclaredSource, read_source

PYTHON = """from x import Stream

OTHER = 1


def unused(rows):
    return rows


@cached
def helper(rows):
    return rows


def transform(rows):
    return helper(rows)


def build(name):
    return Stream(name, transform=unused)


STREAMS = [
    Stream("a", transform=transform),
    Stream(
        "b",
        transform=lambda rows: rows,
    ),
]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    home = tmp_path / "project"
    (home / "jobs").mkdir(parents=True)
    (home / "jobs" / "a.py").write_text(PYTHON)
    (home / "jobs" / "broken.py").write_text("x = (\n")
    (home / "s.sql").write_text("CREATE STREAM s AS\nSELECT 'é'\n")
    (home / "large.sql").write_text("é" * MAX_SHOWN)
    (home / "secrets.env").write_text("PASSWORD=1")
    (tmp_path / "outside.sql").write_text("SELECT 1")
    (home / "link.sql").symlink_to(tmp_path / "outside.sql")
    return home


@pytest.mark.parametrize(
    ("line", "first", "last"),
    [(24, 10, 24), (25, 25, 28), (23, 10, 29), (20, 6, 20), (3, 3, 3), (2, 2, 2), (99, 99, 99)],
)  # fmt: skip
def test_of_python_the_declaration_and_what_it_names_is_shown(project: Path, line: int, first: int, last: int) -> None:
    source = read_source(project, f"jobs/a.py:{line}")
    text = "".join(PYTHON.splitlines(keepends=True)[first - 1 : last])
    assert source == DeclaredSource(f"jobs/a.py:{line}", "python", text, first)


def test_of_sql_the_file_is_shown(project: Path) -> None:
    assert read_source(project, "s.sql:2:1") == DeclaredSource(
        "s.sql:2:1", "sql", "CREATE STREAM s AS\nSELECT 'é'\n", 1
    )
    large = read_source(project, "large.sql")
    assert large
    assert (len(large.text.encode()), large.text[-1]) == (MAX_SHOWN, "é")
    broken = read_source(project, "jobs/broken.py:1")
    assert broken
    assert broken.text == "x = (\n"


@pytest.mark.parametrize(
    "location",
    ["../outside.sql", "link.sql", "secrets.env", "none.sql", "jobs", "", "/etc/passwd", "jobs/../../outside.sql:1:1"],
)
def test_only_files_of_the_project_are_read(project: Path, location: str) -> None:
    assert read_source(project, location) is None
