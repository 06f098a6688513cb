"""The embedded Elasticsearch: one node of the real engine, from Maven Central's jars.

What only its archive has is missing: scripts, `_delete_by_query`, `_reindex`, ingest, ILM, security.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import httpx

from penstock.devstack.servers.base import StoreServer, check_passes, get
from penstock.java import jars, runtime
from penstock.java.compiler import compile_java
from penstock.settings import settings

JAVA = 21
SOURCES = Path(__file__).with_name("java")
# Loaded as a plugin; on the class path as well they would be taken for a conflict.
NETTY = ("netty-", "transport-netty4-", "elasticsearch-ssl-config-")
# Its native libraries are in its archive only; it does without.
LOG4J = """status=error
rootLogger.level=warn
rootLogger.appenderRef.c.ref=C
logger.native.name=org.elasticsearch.nativeaccess
logger.native.level=off
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d{ISO8601} %p %m%n
"""
DESCRIPTOR = """name={name}
description={name}
version={version}
elasticsearch.version={version}
java.version=17
classname={main}
extended.plugins=
has.native.controller=false
"""


@cache
def _jars() -> tuple[list[Path], list[Path], str]:
    """The engine's jars, those of its HTTP, and its version."""
    all_jars = jars.jars_of("elasticsearch")
    http = [jar for jar in all_jars if jar.name.startswith(NETTY)]
    engine = [jar for jar in all_jars if jar not in http]
    [version] = [jar.stem.removeprefix("elasticsearch-") for jar in engine if jar.stem.startswith("elasticsearch-9")]
    return engine, http, version


class ElasticsearchServer(StoreServer):
    """A private Elasticsearch without passwords, on loopback; its transport takes the next port.

    config: settings of the node over the defaults here, as Elasticsearch names them.
    """

    name: str = "elasticsearch"
    label: str = "the Elasticsearch server"
    variable: ClassVar[str] = "PENSTOCK_ELASTICSEARCH_PORT"
    start_timeout: ClassVar[float] = 120.0
    java_options: ClassVar[Sequence[str]] = (
        "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
    )  # fmt: skip

    def __init__(
        self, home: Path | None = None, *, port: int, heap: str = "384m", config: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(home or settings().home)
        self.port = port
        self.heap = heap
        self.config = dict(config or {})
        self.folder = self.home / "elasticsearch"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": self.port, "transport": self.port + 1}

    def prepare(self) -> None:
        engine, http, version = _jars()
        for name in ("config", "plugins", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "config" / "log4j2.properties").write_text(LOG4J)
        modules = self.folder / "modules"
        shutil.rmtree(modules, ignore_errors=True)
        for name, main in {
            "transport-netty4": "org.elasticsearch.transport.netty4.Netty4Plugin",
            "rest-root": "RootPlugin",
        }.items():
            (modules / name).mkdir(parents=True)
            (modules / name / "plugin-descriptor.properties").write_text(
                DESCRIPTOR.format(name=name, version=version, main=main)
            )
        for jar in http:
            shutil.copy(jar, modules / "transport-netty4")
        with zipfile.ZipFile(modules / "rest-root" / "root.jar", "w") as root:
            for path in compile_java(SOURCES / "RootPlugin.java", engine).glob("*.class"):
                root.write(path, path.name)

    def command(self) -> list[str]:
        engine, _, _ = _jars()
        classes = compile_java(SOURCES / "SearchNode.java", engine)
        config = {
            "cluster.name": "penstock",
            "node.name": "node-1",
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            "network.host": "127.0.0.1",
            "http.port": str(self.port),
            "transport.port": str(self.port + 1),
            "discovery.type": "single-node",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **self.config,
        }
        return [
            runtime.at_least(JAVA).command, f"-Xms{self.heap}", f"-Xmx{self.heap}", *self.java_options,
            f"-Djava.io.tmpdir={self.folder / 'tmp'}", f"-Des.path.home={self.folder}",
            "-Dio.netty.noUnsafe=true", "-Dio.netty.noKeySetOptimization=true", "-Dlog4j.shutdownHookEnabled=false",
            "--enable-native-access=ALL-UNNAMED", "--add-modules", "jdk.net,jdk.management",
            "--add-opens", "java.base/java.io=ALL-UNNAMED",
            "-cp", ":".join(map(str, [classes, *engine])), "SearchNode", str(self.folder),
            *(f"{name}={value}" for name, value in config.items()),
        ]  # fmt: skip

    def ready(self) -> bool:
        return check_passes(self._serves, httpx.HTTPError)

    def _serves(self) -> bool:
        """Whether all that it keeps can be read and written; after a start that takes longer than to answer."""
        params = {"wait_for_status": "yellow", "timeout": "1s"}
        answer = get(f"{self.url}/_cluster/health", timeout=5, params=params)
        return answer.is_success and not answer.json()["timed_out"]
