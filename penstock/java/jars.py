"""Jars and archives from Maven Central, fetched once into the cache by the Ivy inside pyspark."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.java import runtime as java
from penstock.java.jar_sets import SETS, Coordinates, JarSet
from penstock.settings import settings

MIB = 1024 * 1024
FetchProgress = Callable[[int, int], None]
"""Told how far a fetch is: bytes so far, bytes about expected."""


# No POM is read: the sets are complete, and reading them would take three times as long.
IVY_SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
</resolvers></ivysettings>"""


def ensure(name: str, tick: FetchProgress | None = None) -> Path:
    """The folder that holds a set's jars, fetched if need be. HostError when that fails."""
    jar_set = SETS[name]
    target = folder(name)
    with publish(target, is_current=lambda: not missing(name)) as fresh:
        if fresh:
            _fetch(name, jar_set, fresh, tick)
    return target


def folder(name: str) -> Path:
    """Where a set's jars are kept; changes with its coordinates."""
    digest = hashlib.sha256("\n".join(SETS[name].coordinates).encode()).hexdigest()[:12]
    return settings().cache / "jars" / f"{name}-{digest}"


def missing(name: str) -> list[str]:
    """Jars of a set that are not in the cache, or not whole."""
    jar_folder = folder(name)
    try:
        sizes: dict[str, int] = json.loads((jar_folder / "sizes.json").read_text())
    except (OSError, ValueError):
        return [Coordinates.parse(c).file for c in SETS[name].coordinates]
    return [
        jar
        for jar, size in sizes.items()
        if not (jar_folder / jar).is_file() or (jar_folder / jar).stat().st_size != size
    ]


def classpath(name: str) -> str:
    return f"{ensure(name)}/*"


def jars_of(name: str, tick: FetchProgress | None = None) -> list[Path]:
    """The jars of a set, in order of name."""
    return sorted(ensure(name, tick).glob("*.jar"))


def pyspark_folder() -> Path:
    """The folder of the installed pyspark, found without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise HostError("pyspark is not installed", hint="make the environment again: `make env`")
    return Path(spec.origin).parent


def _fetch(name: str, jar_set: JarSet, fresh: Path, tick: FetchProgress | None) -> None:
    import tenacity

    ivy = next((pyspark_folder() / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise HostError("pyspark has no jars", got=pyspark_folder(), hint="create the environment again: `make env`")
    work = fresh / "ivy"
    work.mkdir()
    (work / "settings.xml").write_text(IVY_SETTINGS)
    (work / "ivy.xml").write_text(_ivy_file(jar_set))
    runtime = java.find()
    command = [
        runtime.command, *java.trust_options(runtime), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-jar", str(ivy), "-settings", str(work / "settings.xml"), "-cache", str(work / "cache"),
        "-ivy", str(work / "ivy.xml"), "-retrieve", f"{fresh}/[artifact]-[revision](-[classifier]).[ext]",
        "-types", "jar", "tar.gz", "-overwriteMode", "always",
    ]  # fmt: skip
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(work, jar_set, tick, done), daemon=True)
    if tick:
        watcher.start()
    try:
        # Ivy gives up at the first broken connection. It has a cache, so another run continues from there.
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(3),
            wait=tenacity.wait_exponential(min=1, max=10),
            retry=tenacity.retry_if_result(lambda run: run.returncode != 0),
            retry_error_callback=lambda last: last.outcome.result() if last.outcome else None,
        )
        ran = tries(process.run_captured, command)
    finally:
        done.set()
        if tick:
            watcher.join()
    files = [Coordinates.parse(c).file for c in jar_set.coordinates]
    missing_jars = [file for file in files if not (fresh / file).is_file()]
    if ran.returncode or missing_jars:
        raise HostError(
            f"the jars of {name} could not be fetched from Maven Central",
            got=_reason(ran.stdout + ran.stderr) or f"missing: {', '.join(missing_jars)}",
            hint="check that this machine reaches repo1.maven.org, then run the same command again",
        )
    shutil.rmtree(work)
    for archive in fresh.glob("*.tar.gz"):
        _unpack(archive)
    sizes = {str(path.relative_to(fresh)): path.stat().st_size for path in sorted(fresh.rglob("*")) if path.is_file()}
    (fresh / "sizes.json").write_text(json.dumps(sizes, indent=1))


def _ivy_file(jar_set: JarSet) -> str:
    modules: dict[tuple[str, str, str], list[Coordinates]] = {}
    for c in map(Coordinates.parse, jar_set.coordinates):
        # Of two dependencies on one module Ivy would take one.
        modules.setdefault((c.group, c.name, c.version), []).append(c)
    lines = []
    for (group, name, version), files in modules.items():
        lines.append(f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false">')
        for c in files:
            classifier = f' m:classifier="{c.classifier}"' if c.classifier else ""
            lines.append(f'<artifact name="{name}" type="{c.extension}" ext="{c.extension}"{classifier}/>')
        lines.append("</dependency>")
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="penstock" module="jars"/><dependencies>\n'
        + "\n".join(lines)
        + "\n</dependencies></ivy-module>"
    )


def _unpack(archive: Path) -> None:
    """Replace an archive by what is in it."""
    with tarfile.open(archive) as packed:
        # Pythons before 3.11.4 have none.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(archive.parent)
    archive.unlink()


def _watch(work: Path, jar_set: JarSet, tick: FetchProgress | None, done: threading.Event) -> None:
    total = int(jar_set.mib * MIB)
    while tick and not done.wait(0.2):
        so_far = sum(p.stat().st_size for p in work.glob("cache/*/*/*/*") if p.exists())
        tick(min(so_far, total), total)


def _reason(output: str) -> str:
    """The first line of Ivy's output that says why."""
    for line in output.splitlines():
        # Its headings are framed by colons.
        if any(word in line.lower() for word in ("error", "exception", ": not found")) and "::::" not in line:
            return line.strip(" :\t")[:300]
    return ""
