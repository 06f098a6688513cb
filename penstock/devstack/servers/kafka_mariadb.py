"""The embedded parts that keep data: the Kafka broker and the database."""

from __future__ import annotations

import base64
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pymysql

from penstock.devstack.servers import mariadb_binaries
from penstock.devstack.servers.base import Group, Part, owner_option, quietly
from penstock.errors import HostError
from penstock.host import files, ports, process
from penstock.java import jars, runtime
from penstock.settings import settings

LOG4J = """status=ERROR
rootLogger.level=WARN
rootLogger.appenderRef.c.ref=C
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d{ISO8601} %p %enc{%m}{CRLF} (%c{1})%n
"""
# A short run of the broker's own tool: start-up is all it costs.
TOOL = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]


class Broker(Part):
    """One Kafka broker in KRaft mode, broker and controller in one process; the controller takes the next port.

    config: broker settings over the defaults here, as Kafka names them. number: of one of several, the first is 1;
    ports: of all of them in their order, all on this home.
    """

    name: str = "broker"
    label: str = "the Kafka broker"
    variable: ClassVar[str] = "PENSTOCK_KAFKA_PORT"
    java_options: ClassVar[Sequence[str]] = (
        "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
    )  # fmt: skip

    def __init__(
        self,
        home: Path | None = None,
        port: int | None = None,
        *,
        heap: str = "400m",
        config: Mapping[str, str] | None = None,
        number: int = 1,
        ports: Sequence[int] = (),
    ) -> None:
        super().__init__(home or settings().home)
        self.port = port or settings().kafka_port
        self.heap = heap
        self.config = dict(config or {})
        self.number, self.all_ports = number, ports or (self.port,)
        of_several = f"-{number}" if len(self.all_ports) > 1 else ""
        self.name += of_several
        self.label += of_several.replace("-", " ")
        self.folder = self.home / f"kafka{of_several}"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"kafka": self.port, "controller": self.port + 1}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
        (self.folder / "log4j2.properties").write_text(LOG4J)
        data = self.folder / "data"
        if (data / "meta.properties").exists():
            return
        # Formatting writes this file last: without it the folder holds no records yet.
        if kept := [p.name for p in data.glob("*-[0-9]*") if p.name != "__cluster_metadata-0"]:
            raise HostError(
                f"the Kafka broker's data in {data} has lost its meta.properties",
                got=f"partitions {', '.join(sorted(kept)[:5])}",
                hint="bring that file back, or give the records up: `make clean`",
            )
        shutil.rmtree(data, ignore_errors=True)
        done = process.run_captured(
            [*self._java(TOOL), "kafka.tools.StorageTool", "format", "-t", self._cluster_id(), "-c", properties]
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise HostError("the Kafka broker's data folder could not be laid out", got="; ".join(said[:3]))

    def properties(self) -> dict[str, str]:
        """The broker's settings."""
        controller = self.port + 1
        voters = [f"{n}@127.0.0.1:{port + 1}" for n, port in enumerate(self.all_ports, 1)]
        replicas = min(3, len(self.all_ports))
        # Of three, one may be away, and what is acknowledged lies on two.
        written = max(1, replicas - 1)
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.number),
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "num.partitions": "4",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "4",
            # A stream may rest for months: its offsets must not be forgotten.
            "offsets.retention.minutes": str(10 * 365 * 24 * 60),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(written),
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(written),
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "num.recovery.threads.per.data.dir": "2",
            "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
            # One node needs no proof of life twice a second.
            "metadata.max.idle.interval.ms": "5000",
            # After a crash the controller waits for the old session to run out.
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "1500",
            # One broker's own defaults are these.
            **(
                {"default.replication.factor": str(replicas), "min.insync.replicas": str(written)} if voters[1:] else {}
            ),
            **self.config,
        }

    def command(self) -> list[str]:
        options = [f"-Xms{_half(self.heap)}", f"-Xmx{self.heap}", *self.java_options]
        return [*self._java(options), "kafka.Kafka", str(self.folder / "server.properties")]

    def ready(self) -> bool:
        if not ports.listens(self.port):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 5000})
        return quietly(lambda: admin.list_topics(timeout=3).brokers, KafkaException)

    def _cluster_id(self) -> str:
        """Of a single broker any; several are told the same, which is kept beside their folders."""
        if len(self.all_ports) == 1:
            return _made_id()
        kept = self.home / "kafka.id"
        if not kept.exists():
            files.write_private(kept, _made_id())
        return kept.read_text()

    def _java(self, options: list[str]) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [runtime.find().command, *options, logging, "-cp", jars.classpath("broker")]


class Brokers(Group):
    """Kafka brokers that are a quorum of controllers too: replication 3, of which 2 must have what is acknowledged.

    Each is a part of its own, to be killed and started alone. ports: of each the first; its controller takes the next.
    """

    def __init__(self, home: Path | None = None, ports: Sequence[int] = (), *, heap: str = "320m") -> None:
        s = settings()
        chosen = list(ports) or s.broker_ports
        self._brokers = [
            Broker(home or s.home, port, heap=heap, number=n, ports=chosen) for n, port in enumerate(chosen, 1)
        ]

    @property
    def parts(self) -> list[Broker]:
        return self._brokers

    @property
    def bootstrap(self) -> str:
        return ",".join(part.bootstrap for part in self.parts)


def _made_id() -> str:
    """A random id as Kafka writes them; one that starts with a dash would be taken for an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


def _half(heap: str) -> str:
    found = re.fullmatch(r"(\d+)([kmgKMG]?)", heap)
    if not found:
        raise HostError("a heap size is not usable", got=heap, hint="write it as Java does, e.g. 400m")
    return f"{max(1, int(found[1]) // 2)}{found[2]}"


class MariaDB(Part):
    """A private MariaDB with the databases `penstock_control` and `demo` and the user `penstock`.

    The user may also make databases of the form `penstock_<name>`, for tests. Row-based binary log, UTC.
    """

    name: str = "mariadb"
    label: str = "the MariaDB server"
    variable: ClassVar[str] = "PENSTOCK_MARIADB_PORT"

    SETUP = """
CREATE DATABASE IF NOT EXISTS penstock_control;
CREATE DATABASE IF NOT EXISTS demo;
CREATE USER IF NOT EXISTS 'penstock'@'127.0.0.1' IDENTIFIED BY 'penstock';
GRANT ALL PRIVILEGES ON `penstock\\_%`.* TO 'penstock'@'127.0.0.1';
GRANT ALL PRIVILEGES ON demo.* TO 'penstock'@'127.0.0.1';
GRANT PROCESS ON *.* TO 'penstock'@'127.0.0.1';
"""

    def __init__(self, home: Path | None = None, port: int | None = None) -> None:
        super().__init__(home or settings().home)
        self.port = port or settings().mariadb_port
        self.folder = self.home / "mariadb"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the control database."""
        return self.url_of("penstock_control")

    def url_of(self, database: str) -> str:
        return f"mysql+pymysql://penstock:penstock@127.0.0.1:{self.port}/{database}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"mysql": self.port}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Run by the server at each start; every statement changes nothing the second time.
        (self.folder / "setup.sql").write_text(self.SETUP)
        self._temporary.mkdir(exist_ok=True)
        data = self.folder / "data"
        if data.exists():
            return
        server = mariadb_binaries.find()
        fresh = self.folder / "data.part"
        shutil.rmtree(fresh, ignore_errors=True)
        layout = [
            f"--basedir={server.base}", f"--datadir={fresh}", f"--tmpdir={self._temporary}", "--skip-test-db",
            *owner_option(),
        ]  # fmt: skip
        done = process.run_captured([server.install, "--no-defaults", *layout], env=self.environment())
        if done.returncode:
            raise HostError("the database's data folder could not be laid out", got=(done.stdout + done.stderr)[-800:])
        fresh.rename(data)

    @property
    def _temporary(self) -> Path:
        """Its own: a server that starts removes temporary tables, another server's too, which may crash that."""
        return self.folder / "tmp"

    def environment(self) -> dict[str, str]:
        # The server sets a umask of its own.
        return mariadb_binaries.find().environment | {"UMASK": "0600", "UMASK_DIR": "0700"}

    def command(self) -> list[str]:
        # Without --skip-ssl 11.4 makes an RSA key at each start, 10 s of work for a loopback address.
        server = mariadb_binaries.find()
        return [
            str(server.daemon), "--no-defaults", f"--basedir={server.base}", f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self._temporary}",
            # Taken from the data folder: an absolute path may be too long for a socket.
            "--socket=mariadb.sock", "--pid-file=mariadb.pid", f"--init-file={self.folder / 'setup.sql'}",
            "--bind-address=127.0.0.1", f"--port={self.port}", *owner_option(),
            "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL",
            "--binlog-expire-logs-seconds=86400", "--server-id=1", "--gtid-strict-mode=1",
            "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=2",
            "--skip-ssl", "--skip-name-resolve", "--performance-schema=OFF", "--character-set-server=utf8mb4",
            "--default-time-zone=+00:00", "--max-connections=200", "--log-warnings=1",
        ]  # fmt: skip

    def ready(self) -> bool:
        return ports.listens(self.port) and quietly(self._select, pymysql.Error)

    def _select(self) -> bool:
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="penstock", password="penstock", database="penstock_control",
            connect_timeout=3, read_timeout=5,
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            return bool(cursor.execute("SELECT 1"))
