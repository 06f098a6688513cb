"""Kafka Connect with Debezium's MariaDB connector, standalone, with which captures are compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host import ports
from penstock.host.ports import free_port
from penstock.java import jar_sets, jars, runtime

PREFIX = "debezium"

jar_sets.SETS["connect"] = jar_sets.JarSet(
    50,
    (
        "at.yawk.lz4:lz4-java:1.10.2",
        "com.fasterxml.jackson.core:jackson-annotations:2.21",
        "com.fasterxml.jackson.core:jackson-core:2.21.2",
        "com.fasterxml.jackson.core:jackson-databind:2.21.2",
        "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2",
        "com.fasterxml.jackson.jakarta.rs:jackson-jakarta-rs-base:2.21.2",
        "com.fasterxml.jackson.jakarta.rs:jackson-jakarta-rs-json-provider:2.21.2",
        "com.fasterxml.jackson.module:jackson-module-blackbird:2.21.2",
        "com.fasterxml.jackson.module:jackson-module-jakarta-xmlbind-annotations:2.21.2",
        "com.github.luben:zstd-jni:1.5.6-10",
        "com.sun.activation:jakarta.activation:2.0.1",
        "io.debezium:debezium-api:3.5.0.Final",
        "io.debezium:debezium-config:3.5.0.Final",
        "io.debezium:debezium-connect-plugins:3.5.0.Final",
        "io.debezium:debezium-connector-binlog:3.5.0.Final",
        "io.debezium:debezium-connector-common:3.5.0.Final",
        "io.debezium:debezium-connector-mariadb:3.5.0.Final",
        "io.debezium:debezium-ddl-parser:3.5.0.Final",
        "io.debezium:debezium-openlineage-api:3.5.0.Final",
        "io.debezium:debezium-storage-file:3.5.0.Final",
        "io.debezium:debezium-storage-kafka:3.5.0.Final",
        "io.debezium:debezium-util:3.5.0.Final",
        "io.debezium:mysql-binlog-connector-java:0.40.6",
        "io.github.classgraph:classgraph:4.8.179",
        "io.swagger.core.v3:swagger-annotations:2.2.39",
        "jakarta.activation:jakarta.activation-api:2.1.0",
        "jakarta.annotation:jakarta.annotation-api:2.1.1",
        "jakarta.inject:jakarta.inject-api:2.0.1",
        "jakarta.servlet:jakarta.servlet-api:6.0.0",
        "jakarta.validation:jakarta.validation-api:3.0.2",
        "jakarta.ws.rs:jakarta.ws.rs-api:3.1.0",
        "jakarta.xml.bind:jakarta.xml.bind-api:3.0.1",
        "javax.activation:javax.activation-api:1.2.0",
        "javax.xml.bind:jaxb-api:2.3.1",
        "org.antlr:antlr4-runtime:4.10.1",
        "org.apache.kafka:connect-api:4.3.1",
        "org.apache.kafka:connect-json:4.3.1",
        "org.apache.kafka:connect-runtime:4.3.1",
        "org.apache.kafka:connect-transforms:4.3.1",
        "org.apache.kafka:kafka-clients:4.3.1",
        "org.apache.maven:maven-artifact:3.9.15",
        "org.bitbucket.b_c:jose4j:0.9.6",
        "org.codehaus.plexus:plexus-utils:3.6.1",
        "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.0.34",
        "org.eclipse.jetty.ee10:jetty-ee10-servlets:12.0.34",
        "org.eclipse.jetty:jetty-alpn-client:12.0.34",
        "org.eclipse.jetty:jetty-client:12.0.34",
        "org.eclipse.jetty:jetty-http:12.0.34",
        "org.eclipse.jetty:jetty-io:12.0.34",
        "org.eclipse.jetty:jetty-security:12.0.34",
        "org.eclipse.jetty:jetty-server:12.0.34",
        "org.eclipse.jetty:jetty-session:12.0.34",
        "org.eclipse.jetty:jetty-util:12.0.34",
        "org.glassfish.hk2.external:aopalliance-repackaged:3.0.6",
        "org.glassfish.hk2:hk2-api:3.0.6",
        "org.glassfish.hk2:hk2-locator:3.0.6",
        "org.glassfish.hk2:hk2-utils:3.0.6",
        "org.glassfish.hk2:osgi-resource-locator:1.0.3",
        "org.glassfish.jersey.containers:jersey-container-servlet-core:3.1.10",
        "org.glassfish.jersey.containers:jersey-container-servlet:3.1.10",
        "org.glassfish.jersey.core:jersey-client:3.1.10",
        "org.glassfish.jersey.core:jersey-common:3.1.10",
        "org.glassfish.jersey.core:jersey-server:3.1.10",
        "org.glassfish.jersey.inject:jersey-hk2:3.1.10",
        "org.javassist:javassist:3.30.2-GA",
        "org.mariadb.jdbc:mariadb-java-client:3.5.3",
        "org.slf4j:slf4j-api:1.7.36",
        "org.slf4j:slf4j-simple:1.7.36",
        "org.xerial.snappy:snappy-java:1.1.10.7",
    ),
)


class LoggedMariaDB(MariaDB):
    """A MariaDB whose user may read the binary log."""

    SETUP = (
        MariaDB.SETUP
        + "GRANT SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT, BINLOG MONITOR, LOCK TABLES"
        " ON *.* TO 'penstock'@'127.0.0.1';\n"
    )


class Debezium(ManagedServer):
    """One connector that captures one table of the database `demo` into `topic`, as flat JSON rows."""

    name: str = "connect"
    label: str = "Kafka Connect"

    def __init__(self, home: Path, mariadb: MariaDB, bootstrap: str, table: str) -> None:
        super().__init__(home)
        self._mariadb, self._bootstrap, self._table = mariadb, bootstrap, table
        self.topic = f"{PREFIX}.demo.{table}"
        self.port = free_port()
        self.folder = home / "connect"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"rest": self.port}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        converters = {
            f"{of}.converter{more}": value
            for of in ("key", "value")
            for more, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
        }
        worker = {
            "bootstrap.servers": self._bootstrap,
            **converters,
            "listeners": f"http://127.0.0.1:{self.port}",
            "offset.storage.file.filename": self.folder / "offsets",
            "plugin.discovery": "only_scan",
            "producer.compression.type": "lz4",
        }
        connector = {
            "name": "mariadb",
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "tasks.max": 1,
            "database.hostname": "127.0.0.1",
            "database.port": self._mariadb.port,
            "database.user": "penstock",
            "database.password": "penstock",
            "database.server.id": 5400,
            "topic.prefix": PREFIX,
            "database.include.list": "demo",
            "table.include.list": f"demo.{self._table}",
            "include.schema.changes": "false",
            "decimal.handling.mode": "string",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": self.folder / "history",
            # The rows alone, as a capture writes them.
            "transforms": "unwrap",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            # As its users do who want it fast: its own are 2,048 and 8,192.
            "max.batch.size": 10_000,
            "max.queue.size": 50_000,
        }
        for file, properties in (("worker", worker), ("connector", connector)):
            (self.folder / f"{file}.properties").write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    def command(self) -> list[str]:
        return [
            str(runtime.find().command), "-Xmx1g", "-XX:+UseG1GC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars.classpath("connect"),
            "org.apache.kafka.connect.cli.ConnectStandalone",
            str(self.folder / "worker.properties"), str(self.folder / "connector.properties"),
        ]  # fmt: skip

    def ready(self) -> bool:
        return ports.listens(self.port)
