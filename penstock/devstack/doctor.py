"""Looks for what keeps the platform from working, and says how to mend it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse
from uuid import uuid4

import psutil

from penstock.catalog import partial_catalog
from penstock.control import connect
from penstock.devstack.platform import GIB, NEEDED_DISK, Platform
from penstock.engine import executor_check
from penstock.engine.checkpoint import s3a
from penstock.engine.session import memory_bytes
from penstock.errors import PenstockError
from penstock.host import ports
from penstock.java import aot_cache, jars, runtime
from penstock.kafka.admin import describe_topics
from penstock.settings import ExecutorResources, Settings, misspelled_variables, settings
from penstock.supervision import launch

State = Literal["ok", "note", "fail"]
NEEDED_MEMORY = 6 * GIB
UNUSED = "it does not run: `make up` starts it"


@dataclass(frozen=True)
class DoctorCheck:
    """name: what was looked at; found: what was met; hint: what to do, if something is wrong."""

    name: str
    state: State
    found: str
    hint: str = ""


def examine(platform: Platform) -> list[DoctorCheck]:
    """Every check; none of them leaves anything changed."""
    checks: list[tuple[str, Callable[[Platform], Iterator[DoctorCheck]]]] = [
        ("Java", _java),
        ("Spark", _spark),
        ("Jars", _jars),
        ("Disk", _disk),
        ("Memory", _memory),
        ("Ports", _ports),
        ("Declarations", _declarations),
        ("Settings", _settings),
        ("Broker", _broker),
        ("Control database", _control),
        ("Stores", _stores),
        ("Checkpoints", _checkpoints),
        ("Spark cluster", _placed),
        ("Executors", _executors),
        ("Airflow", _airflow),
    ]
    found: list[DoctorCheck] = []
    for name, check in checks:
        try:
            found.extend(check(platform))
        except PenstockError as e:
            got = f"; got: {e.got}" if e.got is not None else ""
            found.append(DoctorCheck(name, "fail", f"{e.what}{got}", e.hint or "see the message"))
    return found


def _java(_: Platform) -> Iterator[DoctorCheck]:
    found = runtime.find()
    place = f"Java {found.version} from {found.source}, {found.home}"
    if found.note:
        yield DoctorCheck(
            "Java", "note", f"{place}, because {found.note}", "set JAVA_HOME to a Java 17, 21 or 25, or leave it unset"
        )
    else:
        yield DoctorCheck("Java", "ok", place)
    if found.version < aot_cache.SINCE:
        hint = f"unset JAVA_HOME, or set it to a Java {aot_cache.SINCE}: drivers then start in half the time"
        yield DoctorCheck("Start of drivers", "note", f"Java {found.version} keeps no cache for it", hint)
    elif aot_cache.missing():
        yield DoctorCheck("Start of drivers", "note", "there is no cache for it yet", "`make up` makes one")
    else:
        yield DoctorCheck("Start of drivers", "ok", f"cached in {aot_cache.folder()}")


def _spark(_: Platform) -> Iterator[DoctorCheck]:
    """Two packages hold Spark's Python files, and one of them the jars: all must be of one version."""
    folder = jars.pyspark_folder()
    versions = {"pyspark": _version("pyspark"), "pyspark-client": _version("pyspark-client")}
    said = re.search(r"""__version__.*?=\s*['"]([^'"]+)""", (folder / "version.py").read_text())
    versions["Python files"] = said[1] if said else "none"
    core = next((folder / "jars").glob("spark-core_*.jar"), None)
    versions["jars"] = core.stem.rpartition("-")[2] if core else "none"
    given = ", ".join(f"{name} {v}" for name, v in versions.items())
    if len(set(versions.values())) == 1:
        yield DoctorCheck("Spark", "ok", f"one version: {versions['jars']}")
    else:
        yield DoctorCheck(
            "Spark", "fail", f"not of one version: {given}", "make the environment again: `make env-clean env`"
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _jars(platform: Platform) -> Iterator[DoctorCheck]:
    stores = [server.name for server in platform.stores if server.name in jars.SETS]
    client = ("s3a",) if s3a.is_object_store(settings().checkpoint_root) else ()
    for name in (*(("broker",) if platform.brokers else ()), "connector", *client, *stores):
        lacking = jars.missing(name)
        if lacking:
            yield DoctorCheck(
                f"Jars of {name}", "fail", f"{len(lacking)} not fetched: {lacking[0]} …", "`make up` fetches"
            )
        else:
            yield DoctorCheck(f"Jars of {name}", "ok", f"{len(jars.SETS[name].coordinates)} in {jars.folder(name)}")


def _disk(_: Platform) -> Iterator[DoctorCheck]:
    for name, place in (("data", settings().home), ("downloads", settings().cache)):
        there = next(p for p in (place, *place.parents) if p.exists())
        free = shutil.disk_usage(there).free
        said = f"{free / GIB:.1f} GiB free for {name} in {place}"
        if free < NEEDED_DISK:
            variable = "PENSTOCK_HOME" if name == "data" else "PENSTOCK_CACHE"
            yield DoctorCheck("Disk", "fail", said, f"make room for {NEEDED_DISK / GIB:.0f} GiB, or choose {variable}")
        else:
            yield DoctorCheck("Disk", "ok", said)


def _memory(platform: Platform) -> Iterator[DoctorCheck]:
    memory = psutil.virtual_memory()
    runs = any(server.running() for server in platform.servers)
    said = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.total < NEEDED_MEMORY or (not runs and memory.available < NEEDED_MEMORY / 2):
        yield DoctorCheck("Memory", "fail", said, "end other programs, or lower PENSTOCK_DRIVER_MEMORY")
    else:
        yield DoctorCheck("Memory", "ok", said)


def _ports(platform: Platform) -> Iterator[DoctorCheck]:
    for server in platform.servers:
        record = server.record if server.running() else None
        for use, port in server.ports.items():
            name = f"Port {port}"
            if record and record.ports.get(use) == port:
                yield DoctorCheck(name, "ok", f"held by {server.label}")
            elif who := ports.port_holder(port):
                hint = f"stop that process, or choose another port by {server.variable}"
                yield DoctorCheck(name, "fail", f"wanted by {server.label}, held by {who}", hint)
            else:
                yield DoctorCheck(name, "ok", f"free for {server.label}")


def _declarations(_: Platform) -> Iterator[DoctorCheck]:
    catalog, wrong = partial_catalog()
    for mistake in wrong:
        yield DoctorCheck(
            "Declarations", "fail", str(mistake), "mend the file; `penstock catalog` reads all of them again"
        )
    found = f"{len(catalog.streams)} streams in {len(catalog.apps)} apps, {len(catalog.topics)} topics"
    if not wrong:
        yield DoctorCheck("Declarations", "ok", found)


def _settings(_: Platform) -> Iterator[DoctorCheck]:
    # Those of a system are known once its declarations are read.
    partial_catalog()
    wrong = misspelled_variables()
    for name, meant in wrong.items():
        yield DoctorCheck("Settings", "note", f"{name} is no setting and changes nothing", f"did you mean {meant}?")
    if not wrong:
        yield DoctorCheck("Settings", "ok", "no variable is misspelled_variables")


def _broker(platform: Platform) -> Iterator[DoctorCheck]:
    gone = [server for server in platform.brokers if not server.running()]
    if gone:
        which = f" ({len(gone)} of {len(platform.brokers)})" if len(platform.brokers) > 1 else ""
        yield DoctorCheck(
            "Broker", "fail", f"no broker at {', '.join(server.bootstrap for server in gone)}{which}", UNUSED
        )
        return
    states = describe_topics(partial_catalog()[0].topics.values(), settings().bootstrap)
    drifted = [state.declared.name for state in states if not state.as_declared]
    if drifted:
        found = f"topics not as declared: {', '.join(drifted)}"
        yield DoctorCheck("Broker", "fail", found, "`penstock topics --apply`")
    else:
        yield DoctorCheck("Broker", "ok", f"answers at {settings().bootstrap}; {len(states)} topics are as declared")


def _control(platform: Platform) -> Iterator[DoctorCheck]:
    if platform.mariadb and not platform.mariadb.running():
        yield DoctorCheck("Control database", "fail", "MariaDB is not there", UNUSED)
        return
    control = connect(settings().control)
    control.now()
    revision, needed = control.schema_revision()
    if revision != needed:
        found = f"its tables are of revision {revision or 'none'}, and this code needs {needed}"
        yield DoctorCheck("Control database", "fail", found, "`penstock migrate`")
    else:
        yield DoctorCheck("Control database", "ok", f"answers; its tables are of revision {needed}")


def _stores(platform: Platform) -> Iterator[DoctorCheck]:
    for server in platform.stores:
        label = server.label.removeprefix("the ")
        if not server.running():
            yield DoctorCheck(label, "fail", f"{server.label} is not there", UNUSED)
        elif not server.ready():
            yield DoctorCheck(label, "fail", f"{server.label} runs, but does not answer", f"see {server.log}")
        else:
            yield DoctorCheck(label, "ok", f"answers at 127.0.0.1:{next(iter(server.ports.values()))}")


def _checkpoints(_: Platform) -> Iterator[DoctorCheck]:
    """Whether what every stream needs can be written where it is wanted."""
    root = settings().checkpoint_root
    place = urlparse(root)
    if s3a.is_object_store(root):
        store, name = s3a.store_below(root), f"penstock-doctor-{uuid4().hex}"
        store.put(name, name.encode())
        try:
            same = store.get(name) == name.encode()
        finally:
            store.delete(name)
        if same:
            yield DoctorCheck("Checkpoints", "ok", f"{root} can be written, read and deleted from")
        else:
            yield DoctorCheck("Checkpoints", "fail", f"{root} gives back other than was put", "see to the object store")
        return
    if place.scheme not in ("", "file"):
        yield DoctorCheck("Checkpoints", "note", f"whether {root} can be written shows when a stream starts")
        return
    folder = Path(place.path)
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        yield DoctorCheck("Checkpoints", "ok", f"{folder} can be written")
    else:
        hint = "mount it, or give its rights, or choose another place by PENSTOCK_CHECKPOINTS"
        yield DoctorCheck("Checkpoints", "fail", f"{there} is no folder that can be written", hint)


def _placed(platform: Platform) -> Iterator[DoctorCheck]:
    """Master and workers, and whether all apps together find the cores and the memory that they ask for."""
    if platform.spark is None:
        return
    gone = [server.label for server in platform.spark_servers if not server.running()]
    ill = [server for server in platform.spark_servers if server.label not in gone and not server.ready()]
    if gone:
        yield DoctorCheck("Spark cluster", "fail", f"not running: {', '.join(gone)}", UNUSED)
        return
    if ill:
        logs = ", ".join(str(server.log) for server in ill)
        found = f"running, but not ready: {', '.join(server.label for server in ill)}"
        yield DoctorCheck("Spark cluster", "fail", found, f"see {logs}")
        return
    s = settings()
    asked = [s.executor_resources(app) for app in partial_catalog()[0].apps if launch.python_command(app, "") is None]
    in_cluster = s.deploy == "cluster"
    cores = sum(one.cores or 0 for one in asked) + len(asked) * in_cluster
    offered = s.workers * s.worker_cores
    whose = "apps and their drivers" if in_cluster else "apps"
    found = f"{s.own_master} with {s.workers} workers; {len(asked)} {whose} ask for {cores} of {offered} cores"
    if _fit(asked, s):
        yield DoctorCheck("Spark cluster", "ok", found)
        return
    found += f", which with their memory do not fit into workers of {s.worker_cores} cores and {s.worker_memory}"
    hint = (
        "raise PENSTOCK_WORKER_CORES or _MEMORY, or lower PENSTOCK_APP_CORES or PENSTOCK_EXECUTOR_MEMORY: an app for "
    )
    yield DoctorCheck("Spark cluster", "fail", found, hint + "which nothing is left is queued")


def _executors(platform: Platform) -> Iterator[DoctorCheck]:
    """One executor is asked for and tried, where there is a cluster to ask; that takes a quarter of a minute."""
    master = settings().spark_master
    if master.startswith("local") or not all(
        server.running() for server in (*platform.brokers, *platform.spark_servers)
    ):
        return
    found = executor_check.check_executor()
    if found.missing:
        hint = "ask again when there is room, or mend what is said"
        yield DoctorCheck("Executors", "note", f"could not be tried: {found.missing}", hint)
    elif found.error:
        hint = (
            "PENSTOCK_EXECUTOR_PYTHON is its Python there, with what requirements.txt names; Penstock and jobs/ are on "
            "its PYTHONPATH; workers reach this host and the brokers; its stderr, on its worker's page, says more"
        )
        yield DoctorCheck("Executors", "fail", f"{settings().worker_python} of {master}: {found.error}", hint)
    else:
        read = f"read {found.records} records" if found.records else "found no record to read yet"
        yield DoctorCheck("Executors", "ok", f"{found.python} on {found.host} runs this code and {read}")


def _fit(asked: Sequence[ExecutorResources], s: Settings) -> bool:
    """Whether workers take all executors, and drivers that live there, the largest first."""
    left = [[s.worker_cores, memory_bytes(s.worker_memory)] for _ in range(s.workers)]
    executors = [
        (one.executor_cores or 1, memory_bytes(one.memory or ""))
        for one in asked
        for _ in range((one.cores or 0) // (one.executor_cores or 1))
    ]
    drivers = [(1, memory_bytes(s.driver_memory))] * (len(asked) if s.deploy == "cluster" else 0)
    for cores, memory in sorted(executors + drivers, reverse=True):
        place = next((one for one in left if one[0] >= cores and one[1] >= memory), None)
        if place is None:
            return False
        place[0] -= cores
        place[1] -= memory
    return True


def _airflow(platform: Platform) -> Iterator[DoctorCheck]:
    servers = platform.airflow.servers
    gone = [server.label for server in servers if not server.running()]
    ill = [server.label for server in servers if server.label not in gone and not server.ready()]
    if gone:
        yield DoctorCheck("Airflow", "fail", f"not running: {', '.join(gone)}", "`make up` starts them")
    elif ill:
        hint = f"see the logs in {settings().logs}; `make down up` starts them anew"
        yield DoctorCheck("Airflow", "fail", f"running, but not healthy: {', '.join(ill)}", hint)
    else:
        yield DoctorCheck("Airflow", "ok", f"healthy at {platform.airflow.url}")
