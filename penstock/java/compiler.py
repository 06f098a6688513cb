"""Java sources compiled here: launchers of servers that Maven Central has as jars only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.java import jars, runtime
from penstock.settings import settings

RELEASE = "17"


def compile_java(source: Path, classpath: Sequence[Path], release: str = RELEASE) -> Path:
    """The folder of a source's classes, compiled if need be. release: the oldest Java that they must run on."""
    text = source.read_bytes() + "\n".join([release, *map(str, classpath)]).encode()
    target = settings().cache / "classes" / f"{source.stem}-{hashlib.sha256(text).hexdigest()[:12]}"
    with publish(target) as fresh:
        if fresh:
            # A runtime, as the wheel is, has no compiler of its own.
            done = process.run_captured(
                [
                    runtime.find().command, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                    "-cp", jars.classpath("compiler"), "org.eclipse.jdt.internal.compiler.batch.Main",
                    "-source", release, "-target", release, "-nowarn", "-encoding", "UTF-8",
                    "-cp", ":".join(map(str, classpath)), "-d", fresh, source,
                ]
            )  # fmt: skip
            if done.returncode:
                raise HostError(f"{source.name} does not compile", got=(done.stderr or done.stdout).strip()[:800])
    return target
