"""The rules of WCAG 2.2 AA that axe-core checks."""

from __future__ import annotations

from typing import cast

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Frame, Page

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def violations(page: Page | Frame) -> list[str]:
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in Axe().run(cast(Page, page), options=RULES).response["violations"]
        for node in violation["nodes"]
    ]
