"""Java's ahead-of-time cache for drivers: their classes loaded and linked, and profiles of their methods.

Without it a driver's JVM loads and verifies 20,000 classes at each start, and interprets what it runs until it knows
what is hot. A training run (`penstock.devstack.aot_training`) leaves both in a file that every later driver maps
(JEP 483, 514 and 515, Java 25). The file belongs to one Java, one pyspark and one set of jars; Java itself
refuses any other.

    python -m penstock.java.aot_cache

creates it if it is missing, at the lowest priority.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.java import jars
from penstock.java import runtime as java
from penstock.settings import settings

SINCE = 25
FILE = "driver.aot"
# Java warns of a few calling conventions that it has to make anew; a cache it cannot take is an error.
QUIET = "-Xlog:aot=error,aot+codecache+stubs=error"
# The run has a broker of its own and needs no cluster.
ALONE = {
    "PENSTOCK_CLUSTER": "0",
    "PENSTOCK_DEPLOY": "client",
    "PENSTOCK_SPARK_MASTER": "local[2]",
    "PENSTOCK_REPLICATION": "1",
    "PENSTOCK_CHECKPOINTS": "",
}
# Which environment a cache was made for.
OWNER = "environment"


def folder() -> Path:
    """The folder of the cache for this environment; another Java, pyspark or connector has another."""
    runtime, folder = java.find(), jars.pyspark_folder() / "jars"
    # Java compares the modification times of jars, which change when an environment is created again.
    jars_with_times = sorted((jar.name, jar.stat().st_mtime_ns) for jar in folder.glob("*.jar"))
    parts = (runtime.command, runtime.release, folder, jars_with_times, jars.folder("connector"))
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]
    return settings().cache / "aot" / digest


def missing() -> bool:
    """Whether a training run would help: this Java can have a cache, and there is none."""
    return java.find().version >= SINCE and not (folder() / FILE).exists()


def options() -> list[str]:
    """Options of a driver's JVM, if there is a cache for it."""
    if java.find().version < SINCE:
        return []
    file = folder() / FILE
    return use_options(file) if file.exists() else []


def use_options(file: Path) -> list[str]:
    """Options of a JVM that starts from a cache."""
    return [f"-XX:AOTCache={file}", QUIET]


def training_options(file: Path) -> list[str]:
    """Options of a JVM that creates a cache when it ends."""
    return [f"-XX:AOTCacheOutput={file}"]


def ensure() -> None:
    """Create the cache if it is missing, which takes one or two minutes.

    Raises:
        HostError: The training run fails.
    """
    if not missing():
        return
    target = folder()
    with publish(target) as fresh:
        if fresh is None:
            return
        done = process.run_captured([sys.executable, "-m", "penstock.devstack.aot_training", fresh / FILE], env=ALONE)
        if done.returncode or not (fresh / FILE).exists():
            raise HostError(
                "the training run for Java's cache failed, so drivers start slower",
                got=(done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1],
                hint="nothing depends on it; `python -m penstock.devstack.aot_training FILE` shows more",
            )
        (fresh / OWNER).write_text(sys.prefix)
    _prune(target)


def _prune(current: Path) -> None:
    """Remove caches of environments that were removed or created again: each is some 200 MB."""
    for owner in current.parent.glob(f"*/{OWNER}"):
        prefix = Path(owner.read_text())
        if owner.parent != current and (not prefix.exists() or prefix == Path(sys.prefix)):
            shutil.rmtree(owner.parent, ignore_errors=True)


if __name__ == "__main__":
    process.lower_priority()
    ensure()
