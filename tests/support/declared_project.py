"""A project of tests that declares things of every kind."""

from __future__ import annotations

from penstock.settings import PROJECT

DECLARED = PROJECT / "tests" / "browser" / "project"
