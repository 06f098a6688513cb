"""Run once while the image is built: fetches what Spark needs, and refuses an image that could not work."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from penstock.devstack.doctor import DoctorCheck, examine
from penstock.devstack.platform import Platform
from penstock.engine.checkpoint import file_managers
from penstock.engine.jvm import java_classes
from penstock.java import jars

# The checks of `penstock doctor` that concern an image; the others look for what runs.
NEEDED = ("Java", "Spark", "Jars of connector", "Declarations")


def faults(checks: Iterable[DoctorCheck]) -> list[str]:
    """What is wrong with the image, a line each."""
    found = {check.name: check for check in checks if check.name in NEEDED}
    wrong = [f"{c.name}: {c.found}; hint: {c.hint}" for c in found.values() if c.state == "fail"]
    return wrong + [f"{name}: was not checked" for name in NEEDED if name not in found]


def main() -> None:
    jars.ensure("connector")
    for manager in (file_managers.LOCAL, file_managers.CONDITIONAL):
        file_managers.jar_of(manager)
    java_classes.jars()
    if wrong := faults(examine(Platform())):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
