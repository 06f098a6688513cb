"""Checks the machine and the platform for problems, with a hint for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
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
from penstock.java import aot_cache, jar_sets, jars, runtime, spark_package
from penstock.kafka.admin import describe_topics
from penstock.registry import client as registry
from penstock.registry import endpoint
from penstock.settings import ExecutorResources, Settings, misspelled_variables, settings
from penstock.supervision import launch

State = Literal["ok", "note", "fail"]
NEEDED_MEMORY = 6 * GIB
UNUSED = "start it with `penstock up`"


@dataclass(frozen=True)
class DoctorCheck:
    """The result of one check. name: what was checked; found: the finding; hint: what to do about it."""

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
        ("Schemas", _schemas),
        ("Checkpoints", _checkpoints),
        ("Spark cluster", _spark_cluster),
        ("Executors", _executors),
        ("Airflow", _airflow),
    ]
    results: list[DoctorCheck] = []
    for name, check in checks:
        try:
            results.extend(check(platform))
        except PenstockError as e:
            got = f"; got: {e.got}" if e.got is not None else ""
            results.append(DoctorCheck(name, "fail", f"{e.what}{got}", e.hint or "see the message"))
    return results


def _java(_: Platform) -> Iterator[DoctorCheck]:
    java = runtime.find()
    description = f"Java {java.version} from {java.source}, {java.home}"
    if java.note:
        yield DoctorCheck(
            "Java",
            "note",
            f"{description}, because {java.note}",
            "set JAVA_HOME to a Java 17, 21 or 25, or leave it unset",
        )
    else:
        yield DoctorCheck("Java", "ok", description)
    if java.version < aot_cache.SINCE:
        hint = f"unset JAVA_HOME, or set it to a Java {aot_cache.SINCE}: drivers then start in half the time"
        yield DoctorCheck("Start of drivers", "note", f"Java {java.version} has no cache for it", hint)
    elif aot_cache.missing():
        yield DoctorCheck("Start of drivers", "note", "there is no cache for it yet", "it is made after `penstock up`")
    else:
        yield DoctorCheck("Start of drivers", "ok", f"cached in {aot_cache.folder()}")


def _spark(_: Platform) -> Iterator[DoctorCheck]:
    yield DoctorCheck("Spark", "ok", f"one version: {spark_package.check()}")


def _jars(platform: Platform) -> Iterator[DoctorCheck]:
    stores = [server.name for server in platform.stores if server.name in jar_sets.SETS]
    client = ("s3a",) if s3a.is_object_store(settings().checkpoint_root) else ()
    for name in (*(("broker",) if platform.brokers else ()), "connector", *client, *stores):
        lacking = jars.missing(name)
        if lacking:
            yield DoctorCheck(
                f"Jars of {name}", "fail", f"{len(lacking)} not fetched: {lacking[0]} …", "`penstock up` fetches"
            )
        else:
            yield DoctorCheck(f"Jars of {name}", "ok", f"{len(jar_sets.SETS[name].coordinates)} in {jars.folder(name)}")


def _disk(_: Platform) -> Iterator[DoctorCheck]:
    for name, folder in (("data", settings().home), ("downloads", settings().cache)):
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(existing).free
        text = f"{free / GIB:.1f} GiB free for {name} in {folder}"
        if free < NEEDED_DISK:
            variable = "PENSTOCK_HOME" if name == "data" else "PENSTOCK_CACHE"
            yield DoctorCheck("Disk", "fail", text, f"free {NEEDED_DISK / GIB:.0f} GiB, or set {variable}")
        else:
            yield DoctorCheck("Disk", "ok", text)


def _memory(platform: Platform) -> Iterator[DoctorCheck]:
    memory = psutil.virtual_memory()
    runs = any(server.running() for server in platform.servers)
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.total < NEEDED_MEMORY or (not runs and memory.available < NEEDED_MEMORY / 2):
        yield DoctorCheck("Memory", "fail", text, "stop other programs, or lower PENSTOCK_DRIVER_MEMORY")
    else:
        yield DoctorCheck("Memory", "ok", text)


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
    catalog, errors = partial_catalog()
    for error in errors:
        yield DoctorCheck("Declarations", "fail", str(error), "correct the file, and check it with `penstock catalog`")
    text = f"{len(catalog.streams)} streams in {len(catalog.apps)} apps, {len(catalog.topics)} topics"
    if not errors:
        yield DoctorCheck("Declarations", "ok", text)


def _settings(_: Platform) -> Iterator[DoctorCheck]:
    # Those of a system are known once its declarations are read.
    partial_catalog()
    misspelled = misspelled_variables()
    for name, similar in misspelled.items():
        yield DoctorCheck("Settings", "note", f"{name} is not a setting and has no effect", f"did you mean {similar}?")
    if not misspelled:
        yield DoctorCheck("Settings", "ok", "no variable looks like a misspelled setting")


def _broker(platform: Platform) -> Iterator[DoctorCheck]:
    down = [server for server in platform.brokers if not server.running()]
    if down:
        which = f" ({len(down)} of {len(platform.brokers)})" if len(platform.brokers) > 1 else ""
        yield DoctorCheck(
            "Broker", "fail", f"no broker at {', '.join(server.bootstrap for server in down)}{which}", UNUSED
        )
        return
    states = describe_topics(partial_catalog()[0].topics.values(), settings().bootstrap)
    drifted = [state.declared.name for state in states if not state.as_declared]
    if drifted:
        text = f"topics not as declared: {', '.join(drifted)}"
        yield DoctorCheck("Broker", "fail", text, "`penstock topics --apply`")
    else:
        yield DoctorCheck("Broker", "ok", f"answers at {settings().bootstrap}; {len(states)} topics are as declared")


def _control(platform: Platform) -> Iterator[DoctorCheck]:
    if platform.mariadb and not platform.mariadb.running():
        yield DoctorCheck("Control database", "fail", "MariaDB does not run", UNUSED)
        return
    control = connect(settings().control)
    control.now()
    revision, needed = control.schema_revision()
    if revision != needed:
        text = f"its tables are of revision {revision or 'none'}, and this code needs {needed}"
        yield DoctorCheck("Control database", "fail", text, "`penstock migrate`")
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


def _schemas(_: Platform) -> Iterator[DoctorCheck]:
    """Whether the schema registry, if one is configured or needed, answers and has what apps write by."""
    catalog = partial_catalog()[0]
    written = {schema: app for app in catalog.apps for schema in catalog.written_schemas(app)}
    if not written and not endpoint.is_configured():
        return
    subjects = registry.probe(endpoint.find_endpoint())
    if missing := {schema.subject: app for schema, app in written.items() if not registry.is_registered(*schema)}:
        text = f"not registered as declared: {', '.join(sorted(missing))}"
        yield DoctorCheck("Schemas", "fail", text, f"penstock streams release {' '.join(sorted({*missing.values()}))}")
    else:
        text = f"the schema registry answers; {subjects} subjects, all {len(written)} that apps write by are registered"
        yield DoctorCheck("Schemas", "ok", text)


def _checkpoints(_: Platform) -> Iterator[DoctorCheck]:
    """Whether the checkpoint folder can be written."""
    root, folder = settings().checkpoint_root, settings().checkpoint_folder
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
            yield DoctorCheck(
                "Checkpoints", "fail", f"{root} returns other bytes than were written", "check the object store"
            )
        return
    if folder is None:
        yield DoctorCheck("Checkpoints", "note", f"{root} is not checked: a stream checks it at its start")
        return
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        yield DoctorCheck("Checkpoints", "ok", f"{folder} can be written")
    else:
        hint = "mount it, change its permissions, or set PENSTOCK_CHECKPOINTS to another folder"
        yield DoctorCheck("Checkpoints", "fail", f"{existing} is not a folder that can be written", hint)


def _spark_cluster(platform: Platform) -> Iterator[DoctorCheck]:
    """Master and workers, and whether the cluster has room for all apps."""
    if platform.spark is None:
        return
    down = [server.label for server in platform.spark_servers if not server.running()]
    not_ready = [server for server in platform.spark_servers if server.label not in down and not server.ready()]
    if down:
        yield DoctorCheck("Spark cluster", "fail", f"not running: {', '.join(down)}", UNUSED)
        return
    if not_ready:
        logs = ", ".join(str(server.log) for server in not_ready)
        text = f"running, but not ready: {', '.join(server.label for server in not_ready)}"
        yield DoctorCheck("Spark cluster", "fail", text, f"see {logs}")
        return
    s = settings()
    requests = [s.executor_resources(app) for app in partial_catalog()[0].apps if launch.has_streams(app)]
    in_cluster = s.deploy == "cluster"
    cores = sum(request.cores or 0 for request in requests) + len(requests) * in_cluster
    offered = s.workers * s.worker_cores
    consumers = "apps and their drivers" if in_cluster else "apps"
    text = f"{s.own_master} with {s.workers} workers; {len(requests)} {consumers} ask for {cores} of {offered} cores"
    if _fit(requests, s):
        yield DoctorCheck("Spark cluster", "ok", text)
        return
    text += f", which with their memory do not fit into workers of {s.worker_cores} cores and {s.worker_memory}"
    hint = (
        "raise PENSTOCK_WORKER_CORES or _MEMORY, or lower PENSTOCK_APP_CORES or PENSTOCK_EXECUTOR_MEMORY: an app for "
    )
    yield DoctorCheck("Spark cluster", "fail", text, hint + "which nothing is left is queued")


def _executors(platform: Platform) -> Iterator[DoctorCheck]:
    """Requests and tests one executor, if there is a cluster; that takes about 15 s."""
    master = settings().spark_master
    if master.startswith("local") or not all(
        server.running() for server in (*platform.brokers, *platform.spark_servers)
    ):
        return
    result = executor_check.check_executor()
    if result.missing:
        hint = "run this again when the cluster has room, or correct the cause"
        yield DoctorCheck("Executors", "note", f"could not be tested: {result.missing}", hint)
    elif result.error:
        hint = (
            "PENSTOCK_EXECUTOR_PYTHON is its Python there, with what requirements.txt names; Penstock and jobs/ are on "
            "its PYTHONPATH; workers reach this host and the brokers; its stderr, on its worker's page, says more"
        )
        yield DoctorCheck("Executors", "fail", f"{settings().worker_python} of {master}: {result.error}", hint)
    else:
        read = f"read {result.records} records" if result.records else "found no record to read yet"
        yield DoctorCheck("Executors", "ok", f"{result.python} on {result.host} runs this code and {read}")


def _fit(requests: Sequence[ExecutorResources], s: Settings) -> bool:
    """Whether workers have room for all executors, and for drivers that run there; the largest first."""
    workers = [[s.worker_cores, memory_bytes(s.worker_memory)] for _ in range(s.workers)]
    executors = [
        (request.executor_cores or 1, memory_bytes(request.memory or ""))
        for request in requests
        for _ in range((request.cores or 0) // (request.executor_cores or 1))
    ]
    drivers = [(1, memory_bytes(s.driver_memory))] * (len(requests) if s.deploy == "cluster" else 0)
    for cores, memory in sorted(executors + drivers, reverse=True):
        worker = next((request for request in workers if request[0] >= cores and request[1] >= memory), None)
        if worker is None:
            return False
        worker[0] -= cores
        worker[1] -= memory
    return True


def _airflow(platform: Platform) -> Iterator[DoctorCheck]:
    servers = platform.airflow.servers
    down = [server.label for server in servers if not server.running()]
    unhealthy = [server.label for server in servers if server.label not in down and not server.ready()]
    if down:
        yield DoctorCheck("Airflow", "fail", f"not running: {', '.join(down)}", "`penstock up` starts them")
    elif unhealthy:
        hint = f"see the logs in {settings().logs}; `penstock down`, then `penstock up` restarts them"
        yield DoctorCheck("Airflow", "fail", f"running, but not healthy: {', '.join(unhealthy)}", hint)
    else:
        yield DoctorCheck("Airflow", "ok", f"healthy at {platform.airflow.url}")
