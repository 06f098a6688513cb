"""A real server of Iceberg's REST protocol: that of Iceberg's own tests, over its JDBC catalog in a file.

Iceberg publishes no server; its classes are in jars of Maven Central, and `RestCatalog.java` starts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import httpx

from penstock.devstack.servers.base import StoreServer, check_passes, get
from penstock.java import jar_sets, jars, runtime
from penstock.java.compiler import compile_java
from penstock.java.jar_sets import JarSet
from penstock.object_store.endpoint import Endpoint

ICEBERG, JETTY, JACKSON = "1.10.1", "12.1.12", "2.19.2"
SOURCE = Path(__file__).with_name("RestCatalog.java")
NAME = "iceberg_rest"
# Beside the client of object stores, which is that of Hadoop (`s3a`).
jar_sets.SETS[NAME] = JarSet(
    18,
    (
        f"com.fasterxml.jackson.core:jackson-annotations:{JACKSON}",
        f"com.fasterxml.jackson.core:jackson-core:{JACKSON}",
        f"com.fasterxml.jackson.core:jackson-databind:{JACKSON}",
        "com.github.ben-manes.caffeine:caffeine:2.9.3",
        "com.h2database:h2:2.3.232",
        "jakarta.servlet:jakarta.servlet-api:6.0.0",
        "org.apache.avro:avro:1.12.0",
        "org.apache.httpcomponents.client5:httpclient5:5.5",
        "org.apache.httpcomponents.core5:httpcore5:5.3.4",
        f"org.apache.iceberg:iceberg-api:{ICEBERG}",
        f"org.apache.iceberg:iceberg-bundled-guava:{ICEBERG}",
        f"org.apache.iceberg:iceberg-common:{ICEBERG}",
        f"org.apache.iceberg:iceberg-core:{ICEBERG}",
        f"org.apache.iceberg:iceberg-core:jar:tests:{ICEBERG}",
        f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
        f"org.eclipse.jetty:jetty-http:{JETTY}",
        f"org.eclipse.jetty:jetty-io:{JETTY}",
        f"org.eclipse.jetty:jetty-security:{JETTY}",
        f"org.eclipse.jetty:jetty-server:{JETTY}",
        f"org.eclipse.jetty:jetty-session:{JETTY}",
        f"org.eclipse.jetty:jetty-util:{JETTY}",
        "org.slf4j:slf4j-api:2.0.17",
        "org.slf4j:slf4j-simple:2.0.17",
        "software.amazon.awssdk:url-connection-client:2.35.4",
    ),
)


class RestCatalogServer(StoreServer):
    """A private REST catalog on loopback, without logins. Its tables are in the object store of `endpoint`."""

    name: str = "iceberg-rest"
    label: str = "the REST catalog"

    def __init__(self, home: Path, port: int, endpoint: Endpoint) -> None:
        super().__init__(home)
        self.port, self._endpoint = port, endpoint

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": self.port}

    def command(self) -> list[str]:
        classpath = [*jars.jars_of(NAME), *jars.jars_of("s3a")]
        store = self._endpoint
        return [
            runtime.find().command, "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dfile.encoding=UTF-8",
            "-cp", ":".join(map(str, [compile_java(SOURCE, classpath), *classpath])), "RestCatalog", str(self.port),
            # What is answered is on the disk, whenever the server is killed.
            f"jdbc:h2:file:{self.home / 'catalog'};WRITE_DELAY=0;DATABASE_TO_LOWER=TRUE",
            store.url, store.region, store.access_key, store.secret_key,
        ]  # fmt: skip

    def ready(self) -> bool:
        return check_passes(lambda: get(f"{self.url}/v1/config", timeout=3).is_success, httpx.HTTPError)
