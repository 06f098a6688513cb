"""The embedded Kafka brokers."""

from __future__ import annotations

import base64
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from penstock.devstack.servers.base import ManagedServer, ServerGroup, check_passes
from penstock.errors import HostError
from penstock.host import files, ports, process
from penstock.java import jars, runtime
from penstock.java.properties import properties_text
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


class Broker(ManagedServer):
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
        properties.write_text(properties_text(self.properties()))
        (self.folder / "log4j2.properties").write_text(LOG4J)
        data = self.folder / "data"
        if (data / "meta.properties").exists():
            return
        # Formatting writes this file last: without it the folder holds no records yet.
        if partitions := [p.name for p in data.glob("*-[0-9]*") if p.name != "__cluster_metadata-0"]:
            raise HostError(
                f"the Kafka broker's data in {data} lacks meta.properties",
                got=f"partitions {', '.join(sorted(partitions)[:5])}",
                hint="restore that file, or delete all records: `penstock clean`",
            )
        shutil.rmtree(data, ignore_errors=True)
        done = process.run_captured(
            [*self._java(TOOL), "kafka.tools.StorageTool", "format", "-t", self._cluster_id(), "-c", properties]
        )
        if done.returncode:
            output = (done.stderr or done.stdout).strip().splitlines()
            raise HostError("the Kafka broker's data folder could not be formatted", got="; ".join(output[:3]))

    def properties(self) -> dict[str, str]:
        """The broker's settings."""
        controller = self.port + 1
        voters = [f"{n}@127.0.0.1:{port + 1}" for n, port in enumerate(self.all_ports, 1)]
        replicas = min(3, len(self.all_ports))
        # One of three may be down; an acknowledged record is on at least two.
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
        return check_passes(lambda: admin.list_topics(timeout=3).brokers, KafkaException)

    def _cluster_id(self) -> str:
        """The cluster id. Several brokers share one, which is stored beside their folders."""
        if len(self.all_ports) == 1:
            return _random_id()
        file = self.home / "kafka.id"
        if not file.exists():
            files.write_private(file, _random_id())
        return file.read_text()

    def _java(self, options: list[str]) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [runtime.find().command, *options, logging, "-cp", jars.classpath("broker")]


class Brokers(ServerGroup):
    """Kafka brokers that are a quorum of controllers too: replication 3, of which 2 must have what is acknowledged.

    Each is a server of its own, to be killed and started alone.

    Args:
        ports: Of each the first; its controller takes the next.
    """

    def __init__(self, home: Path | None = None, ports: Sequence[int] = (), *, heap: str = "320m") -> None:
        s = settings()
        chosen = list(ports) or s.broker_ports
        self._brokers = [
            Broker(home or s.home, port, heap=heap, number=n, ports=chosen) for n, port in enumerate(chosen, 1)
        ]

    @property
    def servers(self) -> list[Broker]:
        return self._brokers

    @property
    def bootstrap(self) -> str:
        return ",".join(server.bootstrap for server in self.servers)


def _random_id() -> str:
    """A random id as Kafka writes them; one that starts with a dash would be taken for an option."""
    while True:
        id_ = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not id_.startswith("-"):
            return id_


def _half(heap: str) -> str:
    match = re.fullmatch(r"(\d+)([kmgKMG]?)", heap)
    if not match:
        raise HostError("this is not a heap size", got=heap, hint="write it as Java does, e.g. 400m")
    return f"{max(1, int(match[1]) // 2)}{match[2]}"
