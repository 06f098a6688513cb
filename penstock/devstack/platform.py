"""The whole platform on one machine: starts it in steps that may be repeated, and stops it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from penstock.catalog import BrokenFile, Catalog, check_project, load_partial, mistakes_of_app
from penstock.control import Control, connect
from penstock.devstack import folders, releases, stream_start
from penstock.devstack.demo_database import DemoDatabase
from penstock.devstack.progress import ProgressReporter
from penstock.devstack.servers import mariadb_binaries, stores
from penstock.devstack.servers.airflow import Airflow, ApiServer
from penstock.devstack.servers.base import ManagedServer, stop_together
from penstock.devstack.servers.kafka import Broker, Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.meter import MetricsCollectorServer
from penstock.devstack.servers.shared_session import SharedSessionServer
from penstock.devstack.servers.spark import Master, SparkCluster
from penstock.engine.checkpoint import file_managers, s3a
from penstock.engine.jvm import java_classes
from penstock.errors import ControlError, HostError, PenstockError
from penstock.host import process, session
from penstock.host.files import HOME_ENTRIES, is_shared, locked, make_private, owner_only, remove_home
from penstock.java import aot_cache, jar_sets, jars, runtime, spark_package
from penstock.kafka.admin import ensure_topics
from penstock.monitoring.collect.samples import RECEIPTS
from penstock.monitoring.dashboard.model import Overview
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import StateLimits
from penstock.object_store.endpoint import LOCAL_SERVICE
from penstock.settings import CLUSTER_MARK, Settings, settings
from penstock.supervision import backends, launch

GIB = 1024**3
NEEDED_DISK = 3 * GIB
LOCK = Path("run", "up.lock")
"""The lock of starting and stopping, in the home."""


def as_running(configured: Settings) -> Settings:
    """Settings of the servers of this home as they run now, even if the environment has changed."""
    ports: dict[str, int] = {}
    for name, use, option in (
        (Broker.name, "kafka", "kafka_port"),
        (f"{Broker.name}-1", "kafka", "kafka_port"),
        (Master.name, "spark", "spark_port"),
        (MariaDB.name, "mysql", "mariadb_port"),
        (ApiServer.name, "http", "airflow_port"),
        (MetricsCollectorServer.name, "metrics", "metrics_port"),
    ):
        record = process.read(configured.home / "run", name)
        if record and record.process() and use in record.ports:
            ports[option] = record.ports[use]
    for name in stores.KINDS:
        record = process.read(configured.home / "run", name)
        if record and record.process() and record.ports:
            ports[f"{name}_port"] = next(iter(record.ports.values()))
    actual = configured.model_copy(update=ports)
    uses_embedded_master = configured.spark_master == configured.own_master
    return actual.model_copy(update={"spark_master": actual.own_master}) if uses_embedded_master else actual


def _brokers(s: Settings) -> list[Broker]:
    return Brokers(s.home, s.broker_ports).servers if s.cluster else [Broker(s.home, s.kafka_port)]


class Platform:
    """The servers of this machine's platform. A broker or database named in the settings is used as it is."""

    def __init__(self, configured: Settings | None = None) -> None:
        self.settings = s = configured or settings()
        self.brokers = [] if s.kafka_bootstrap else _brokers(s)
        # A master elsewhere may be given even so.
        uses_embedded_master = s.cluster and s.spark_master == s.own_master
        self.spark = SparkCluster(s.home, s.spark_port) if uses_embedded_master else None
        self.mariadb = None if s.control_url.get_secret_value() else MariaDB(s.home, s.mariadb_port)
        self.stores = stores.chosen(s)
        self.airflow = Airflow(s.home, s.airflow_port, s.project)
        page_url = s.page_url or f"http://127.0.0.1:{s.airflow_port}/plugin/penstock"
        self.meter = MetricsCollectorServer(s.home, s.metrics_port, page_url)
        # Executors of a cluster would be held by a session that waits.
        keeps_session = s.is_any_together or (s.warm_session and s.spark_master.startswith("local"))
        is_shared = keeps_session or SharedSessionServer.runs_in(s.home)
        self.shared_session = SharedSessionServer(s.home) if is_shared else None
        # What of the declarations cannot run now, and the streams that are not waited for because of it.
        self._problems: list[PenstockError] = []
        self._left_out: set[str] = set()
        self._measuring: set[str] = set()
        """Apps that read what the meter writes."""

    @property
    def servers(self) -> list[ManagedServer]:
        """In the order in which they start."""
        servers = [*self.data_servers, *self.stores, *self.spark_servers, self.meter, *self.airflow.servers]
        return [*servers, self.shared_session] if self.shared_session else servers

    @property
    def data_servers(self) -> list[ManagedServer]:
        """The servers with the platform's own data: brokers and control database."""
        return [*self.brokers, *([self.mariadb] if self.mariadb else [])]

    @property
    def spark_servers(self) -> list[ManagedServer]:
        """Spark's master and workers."""
        return [*self.spark.servers] if self.spark else []

    # Up

    def up(self, report: ProgressReporter, wait: bool = False) -> Overview:
        """Start all servers that do not run, and wait until streams read. It may be repeated, also after an abort.

        Args:
            wait: Whether to wait for all streams, also where Airflow has just started, and only those of one app are
                ahead of the others.

        Raises:
            HostError: The platform cannot be started.
            DeclarationError: There is no project.
        """
        folders.check_all(self.settings)
        check_project(self.settings.project)
        make_private(self.settings.home)
        with self._alone():
            with report.step("Checking this machine") as step:
                self._check_cluster_mark()
                step.say(self._check())
            if self.settings.cluster:
                (self.settings.home / CLUSTER_MARK).touch()
            self._fetch(report)
            self._start_stores(report)
            with report.step("Creating tables and topics as declared") as step:
                step.say(self.declare())
            if self.spark_servers:
                self._start_all(report, self.spark_servers, "Starting the Spark cluster")
            if self.shared_session and self.settings.is_any_together:
                self.shared_session.start()
            control = connect(self.settings.control)
            first = "" if self.airflow.scheduler.running() else self._launch_first_driver(control, report)
            self._start_all(report, [self.meter], "Starting the meter")
            self._start_all(report, self.airflow.servers, "Starting Airflow")
            try:
                with report.step("Waiting for the first figures of the streams") as step:
                    view = stream_start.wait_for_streams(
                        lambda: self.view(control), self._left_out, step.say, "" if wait else first
                    )
            except HostError:
                # A stream that fails is mended with previews, which need the session.
                self._start_helpers()
                raise
            self._start_helpers()
            if self._problems:
                raise HostError(
                    "not all that is declared runs",
                    got="; ".join(map(str, self._problems)),
                    hint="mend it, then `penstock up` again; all else runs",
                )
            return view

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Take the lock of starting and stopping."""
        with locked(self.settings.home / LOCK):
            yield

    def _check(self) -> str:
        for folder in (self.settings.home, self.settings.cache):
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
            if free < NEEDED_DISK:
                raise HostError(
                    f"the disk of {folder} is nearly full",
                    got=f"{free / GIB:.1f} GiB free, {NEEDED_DISK / GIB:.0f} are needed",
                    hint="free disk space, or set PENSTOCK_HOME (data) or PENSTOCK_CACHE (downloads) to another folder",
                )
        spark_package.check()
        java = runtime.find()
        for server in self.servers:
            if not server.running():
                server.ports_free()
        note = f" ({java.note})" if java.note else ""
        return f"Java {java.version} from {java.source}{note}"

    def _check_cluster_mark(self) -> None:
        """Data of one broker is not that of three: HostError if the home was first started in the other way."""
        s, mark = self.settings, self.settings.home / CLUSTER_MARK
        marked, one = mark.exists(), (s.home / "kafka" / "data" / "meta.properties").exists()
        if s.cluster and one:
            raise HostError(
                "the data of this home lies on one broker, and a cluster has three",
                got=f"PENSTOCK_CLUSTER is set, and {s.home} holds records and checkpoints of one broker",
                hint="choose another place by PENSTOCK_HOME, or give the data up: `penstock clean`",
            )
        if marked and not s.cluster:
            raise HostError(
                "the data of this home lies on the brokers of a cluster",
                got=f"PENSTOCK_CLUSTER is off, and {mark} is there",
                hint="leave PENSTOCK_CLUSTER out, choose another PENSTOCK_HOME, or give it up: `penstock clean`",
            )

    def _fetch(self, report: ProgressReporter) -> None:
        downloads: list[tuple[str, str]] = [("connector", "Spark's Kafka connector")]
        if self.brokers:
            downloads.insert(0, ("broker", "Kafka"))
        if s3a.is_object_store(settings().checkpoint_root):
            downloads.append(("s3a", "Spark's client of object stores"))
        for name, label in downloads:
            if jars.missing(name):
                with report.step(f"Fetching {label}") as step:
                    jars.ensure(name, step.tick)
        if s3a.is_object_store(settings().checkpoint_root):
            s3a.s3a_jars()
        else:
            file_managers.jar_of(file_managers.LOCAL)
        java_classes.jars()
        if self.mariadb and not self.mariadb.running():
            with report.step("Looking for MariaDB") as step:
                step.say(f"from {mariadb_binaries.find(step.tick).source}")
        for server in self.stores:
            if server.name in jar_sets.SETS and jars.missing(server.name):
                with report.step(f"Fetching {server.label.removeprefix('the ')}") as step:
                    jars.ensure(server.name, step.tick)

    def _start_helpers(self) -> None:
        """Start what takes the machine's time behind the streams."""
        self.create_java_cache()
        if self.shared_session:
            self.shared_session.start()

    def create_java_cache(self) -> None:
        """Let a process create Java's cache if it is missing; drivers that start later use it."""
        name, run = "java-cache", self.settings.home / "run"
        if aot_cache.missing() and not ((record := process.read(run, name)) and record.process()):
            command = [sys.executable, "-m", aot_cache.__name__]
            with owner_only():
                process.spawn(name, command, run=run, log=self.settings.home / "logs" / f"{name}.log")

    def _start_stores(self, report: ProgressReporter) -> None:
        for servers in (self.data_servers, self.stores):
            if servers:
                self._start_all(
                    report, servers, f"Starting {' and '.join(p.label.removeprefix('the ') for p in servers)}"
                )

    def _start_all(self, report: ProgressReporter, servers: Sequence[ManagedServer], title: str) -> None:
        with report.step(title) as step:
            started = [server for server in servers if server.start()]
            for server in servers:
                step.say(f"waiting for {server.label}")
                server.wait()
            runs = "they run already" if len(servers) > 1 else "it runs already"
            some = f"started {len(started)} of {len(servers)}, the others run already"
            step.say("" if len(started) == len(servers) else some if started else runs)

    def _launch_first_driver(self, control: Control, report: ProgressReporter) -> str:
        """Launch the driver of one app ahead of the others, which Airflow launches; the app's name, empty if none."""
        app = stream_start.first_app(control, self._left_out, self._measuring)
        # A cluster has cores of its own, and takes seconds for a submission.
        if app and self.settings.deploy != "cluster":
            with report.step(f"Launching the driver of app {app}, ahead of the others") as step:
                step.say(stream_start.launch_driver(control, app))
        return app

    @property
    def problems(self) -> Sequence[PenstockError]:
        """What is declared and cannot run now."""
        return self._problems

    def declare(self) -> str:
        """Create the tables and topics that are declared, and release what has changed; returns a summary."""
        return self._declare(*load_partial(self.settings.project, combiners=False))

    def _declare(self, catalog: Catalog, broken_files: Sequence[BrokenFile]) -> str:
        control = connect(self.settings.control)
        control.migrate()
        before = control.desired()
        control.sync(catalog, forget=not broken_files)
        if self.mariadb:
            DemoDatabase(self.mariadb.url_of("demo"), self.settings.project / "sql" / "tables").create()
        changed = ensure_topics(catalog.topics.values(), self.settings.bootstrap)
        # What is new finds its tables and topics.
        broken_apps = {app.name for app in control.apps() if mistakes_of_app(app.name, catalog, broken_files)}
        new = control.desired().keys() - before.keys()
        self._measuring = {stream.app for stream in catalog.streams.values() if stream.has_input_topic(RECEIPTS)}
        released = releases.release_what_changed(control, catalog, new, broken_apps)
        summary = f"{len(catalog.topics)} topics" + (f", {len(changed)} created or changed" if changed else "")
        summary += "".join(f"; released for {why}: {', '.join(names)}" for why, names in released.apps.items())
        summary += "".join(f"; wrong: {error}" for error in broken_files)
        self._problems += [*released.problems, *broken_files]
        # What is new in an app of which a file is wrong may not start.
        self._left_out.update(control.desired().keys() - catalog.supervised.keys(), *map(control.desired, broken_apps))
        self._left_out |= released.left_out
        return summary

    def view(self, control: Control) -> Overview:
        return overview(read(control), StateLimits.of(self.settings))

    # Down

    def down(self, report: ProgressReporter) -> None:
        """Stop everything, drivers included; data stays."""
        if not self.settings.home.exists():
            return
        with self._alone():
            with report.step("Stopping Airflow and the meter") as step:
                # First, or it would launch again what is drained next.
                ran = [self.airflow.stop(), self.meter.stop()]
                step.say("" if any(ran) else "they did not run")
            with report.step("Draining the streams") as step:
                step.say(self._stop_drivers(step.say))
                if self.shared_session:
                    self.shared_session.stop()
            # The stores last, because draining drivers still write to them.
            if self.spark:
                with report.step("Stopping the Spark cluster") as step:
                    step.say("" if self.spark.stop() else "it did not run")
            with report.step("Stopping Kafka, MariaDB and the stores") as step:
                # Brokers at once: the last one of a quorum cannot hand over its partitions.
                ran = [stop_together(self.brokers)]
                ran += [server.stop() for server in (self.mariadb, *self.stores) if server]
                ran += [process.stop_recorded(self.settings.home / "run")]
                step.say("" if any(ran) else "they did not run")

    def _stop_drivers(self, say: Callable[[str], None]) -> str:
        control = connect(self.settings.control)
        try:
            rows = [row for row in control.drivers() if backends.alive(row)]
        except ControlError:
            rows = []  # without the database none can drain; what runs is found below
        for row in rows:
            with suppress(ControlError):
                control.mark_driver_asked_to_leave(row.incarnation)
            backends.terminate(row)
        if rows:
            say(f"{len(rows)} drivers end their batches")
            process.wait_for(lambda: not any(backends.alive(row) for row in rows), self.settings.drain_timeout, 0.2)
        killed = [row for row in rows if backends.alive(row) and backends.kill(row)]
        for row in rows:
            with suppress(ControlError):
                control.end_driver(row.incarnation, "the platform was taken down", "asked")
        strays = self._unrecorded_sessions()
        for leader in strays:
            session.of_leader(leader).kill()
        if not rows and not strays:
            return "none ran"
        drained = len(rows) - len(killed)
        return f"{drained} drained" + (f", {len(killed) + len(strays)} killed" if killed or strays else "")

    def _unrecorded_sessions(self) -> set[int]:
        """Leaders of sessions that run a driver of this home and are not in the database."""
        sessions = set()
        for candidate in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_of_this_home = candidate.environ().get("PENSTOCK_HOME") == str(self.settings.home)
                if is_of_this_home and launch.INCARNATION in candidate.cmdline():
                    sessions.add(os.getsid(candidate.pid))
        return sessions - {os.getsid(0)}

    def clean(self, report: ProgressReporter) -> None:
        """Stop everything and remove the data. Downloads stay in the cache, and what is not Penstock's in the home."""
        home, project = self.settings.home.resolve(), self.settings.project.resolve()
        if home in (Path.home(), Path("/"), project) or home in project.parents:
            raise HostError("this folder is not Penstock's alone, so it is not removed", got=home)
        if home.exists() and is_shared(home) and not (home / LOCK).exists():
            hint = "let PENSTOCK_HOME name the home of the platform"
            raise HostError("no platform was started in this folder, so nothing of it is removed", got=home, hint=hint)
        self.down(report)
        if home.exists():
            with report.step(f"Removing {home}") as step:
                others = remove_home(home)
                left = [f"{', '.join(others)}, as not Penstock's"] if others else []
                if checkpoints := self.checkpoints_elsewhere:
                    folder = self.settings.checkpoint_folder
                    remedy = f"`rm -r {shlex.quote(str(folder))}`" if folder else "the store's own tools"
                    left.append(
                        f"the checkpoints in {checkpoints}; remove them by {remedy} before the next `penstock up`"
                    )
                if left:
                    step.say(f"left: {'; '.join(left)}")

    @property
    def checkpoints_elsewhere(self) -> str:
        """Where checkpoints are that `clean` does not remove; empty if there are none."""
        home, folder = self.settings.home, self.settings.checkpoint_folder
        if folder is None:
            is_here = any(server.name == LOCAL_SERVICE for server in self.stores)
        else:
            is_here = not folder.exists() or any(folder.is_relative_to(home / name) for name in HOME_ENTRIES)
        return "" if is_here else self.settings.checkpoint_root
