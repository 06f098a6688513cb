"""What docker/ declares: services, the image, their commands and settings. No container engine is needed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from penstock.settings import PROJECT

DOCKER = PROJECT / "docker"
COMPOSE = DOCKER / "compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
IN_IMAGE = "/opt/penstock/"


def loaded(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text())


def example() -> dict[str, str]:
    """docker/.env.example as it is; secrets are empty."""
    lines = (DOCKER / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def secrets() -> set[str]:
    return {name for name, sign, _ in VARIABLE.findall(COMPOSE.read_text()) if sign == "?"}


def filled(**more: str) -> dict[str, str]:
    """What a docker/.env may hold."""
    return example() | {name: f"{name.lower()}-1" for name in secrets()} | more


def interpolated(node: Any, env: Mapping[str, str]) -> Any:
    """As Compose does it; ValueError where a variable that must be set is not."""

    def value(found: re.Match[str]) -> str:
        name, sign, rest = found.groups()
        if env.get(name):
            return env[name]
        if sign == "?":
            raise ValueError(rest)
        return rest or ""

    match node:
        case dict():
            return {k: interpolated(v, env) for k, v in node.items()}
        case list():
            return [interpolated(v, env) for v in node]
        case str():
            return VARIABLE.sub(value, node)
        case _:
            return node


def services(**more: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = interpolated(loaded(COMPOSE)["services"], filled(**more))
    return found


def environment() -> dict[str, str]:
    """Every variable of every service."""
    return {k: v for s in services().values() for k, v in (s.get("environment") or {}).items()}


def ours() -> dict[str, dict[str, Any]]:
    return {name: s for name, s in services().items() if s["image"].startswith("penstock:")}


def mounts() -> Iterator[tuple[str, str, str]]:
    """(service, source, target)"""
    for name, service in services().items():
        for mount in service.get("volumes", ()):
            source, target, *_ = mount.split(":")
            yield name, source, target


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, without comments, each on one line."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text()).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copied() -> list[str]:
    """What the Dockerfile copies, by path in the project."""
    lines = [[w for w in rest.split() if not w.startswith("--")] for word, rest in instructions() if word == "COPY"]
    return [source for line in lines for source in line[:-1]]


def script() -> list[list[str]]:
    """The commands of init.sh that are Airflow's or Penstock's."""
    lines = (DOCKER / "init.sh").read_text().splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("airflow ", "penstock "))]


def commands() -> list[list[str]]:
    """Every command that runs in Penstock's image: of services, their health checks, and init.sh."""
    checks = [s["healthcheck"]["test"][1:] for s in ours().values() if "healthcheck" in s]
    return [[str(word) for word in line] for line in [s["command"] for s in ours().values()] + checks + script()]
