"""The embedded object store: s3proxy from Maven Central, its objects in files.

It has one access key, whose secret is in the home, and refuses other requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import httpx

from penstock.devstack.servers.base import StoreServer, check_passes, get
from penstock.host import secret_file
from penstock.java import jars, runtime
from penstock.java.properties import properties_text
from penstock.object_store.endpoint import ACCESS_KEY, LOCAL_SERVICE, SECRET_FILE
from penstock.settings import settings

# Its own would print every request.
LOGBACK = """<configuration>
<appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d{ISO8601} %p %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class S3Server(StoreServer):
    """A private object store on loopback."""

    name: str = LOCAL_SERVICE
    label: str = "the object store"
    variable: ClassVar[str] = "PENSTOCK_S3_PORT"

    def __init__(self, home: Path | None = None, *, port: int, heap: str = "192m") -> None:
        super().__init__(home or settings().home)
        self.port = port
        self.heap = heap
        self.folder = self.home / "s3"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def secret_key(self) -> str:
        """The secret of this home's store; one is made where there is none."""
        return secret_file.load_or_create(self.home / SECRET_FILE).hex()

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": self.port}

    def prepare(self) -> None:
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        config = {
            "s3proxy.endpoint": self.url,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": self.secret_key,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(data),
        }
        (self.folder / "s3proxy.conf").write_text(properties_text(config))
        (self.folder / "logback.xml").write_text(LOGBACK)

    def command(self) -> list[str]:
        return [
            runtime.find().command, f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8",
            f"-Dlogback.configurationFile={self.folder / 'logback.xml'}", "-cp", jars.classpath("s3"),
            "org.gaul.s3proxy.Main", "--properties", str(self.folder / "s3proxy.conf"),
        ]  # fmt: skip

    def ready(self) -> bool:
        # Who brings no key is refused: that is an answer.
        return check_passes(lambda: get(self.url, timeout=3).status_code == httpx.codes.FORBIDDEN, httpx.HTTPError)
