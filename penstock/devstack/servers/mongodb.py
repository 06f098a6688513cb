"""The embedded server of MongoDB's protocol: mongo-java-server from Maven Central, its data in one file.

mongod is available neither from Maven Central nor from Debian; docs/compatibility.md lists what this one lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from penstock.devstack.servers.base import StoreServer, check_passes
from penstock.host import ports
from penstock.java import jars, runtime
from penstock.settings import settings

SOURCE = Path(__file__).with_name("java") / "MongoDB.java"
# Compiles the launcher as it starts: a runtime, as the wheel is, has no compiler of its own.
COMPILER = ("janino-", "commons-compiler-")


class MongoDBServer(StoreServer):
    """A private server without passwords, on loopback."""

    name: str = "mongodb"
    label: str = "the MongoDB server"
    variable: ClassVar[str] = "PENSTOCK_MONGODB_PORT"

    def __init__(self, home: Path | None = None, *, port: int, heap: str = "256m") -> None:
        super().__init__(home or settings().home)
        self.port = port
        self.heap = heap
        self.folder = self.home / "mongodb"

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"mongodb": self.port}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        spark = jars.pyspark_folder() / "jars"
        compiler = [str(jar) for name in COMPILER for jar in spark.glob(f"{name}*.jar")]
        return [
            runtime.find().command, f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", ":".join([jars.classpath("mongodb"), *compiler]),
            "org.codehaus.janino.SimpleCompiler", str(SOURCE), "MongoDB", str(self.port),
            str(self.folder / "data.mv"),
        ]  # fmt: skip

    def ready(self) -> bool:
        return ports.listens(self.port) and check_passes(self._answers, PyMongoError)

    def _answers(self) -> bool:
        with MongoClient[dict[str, object]](self.url, serverSelectionTimeoutMS=3000) as client:
            return bool(client.admin.command("ping"))
