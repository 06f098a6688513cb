"""Kafka's own command line tools, run against a broker of the tests."""

from __future__ import annotations

import subprocess

import pytest

from penstock.devstack.servers.kafka import TOOL
from penstock.java import jar_sets, jars, runtime

TOOLS = jar_sets.JarSet(2, ("org.apache.kafka:kafka-tools:4.3.1",))


def run_tool(main_class: str, bootstrap: str, *arguments: str) -> list[dict[str, str]]:
    """Returns the rows of the table that a tool prints, by the names in its header."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(jar_sets.SETS, "kafka-tools", TOOLS)
        classpath = f"{jars.classpath('kafka-tools')}:{jars.classpath('broker')}"
    command = [runtime.find().command, *TOOL, "-cp", classpath, main_class, "--bootstrap-server", bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    header = next(n for n, line in enumerate(lines) if line[0].isupper() or line[0] == "TransactionalId")
    return [dict(zip(lines[header], line, strict=False)) for line in lines[header + 1 :]]
