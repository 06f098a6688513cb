"""Checkpoints in an object store, which Spark reaches by Hadoop's S3A client.

An entry of Spark's logs is one conditional write, `If-None-Match: *`: of two drivers that plan or commit a batch of the
same number, the first one succeeds. Nothing is renamed there, as that would copy each file.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

from penstock.engine.checkpoint import file_managers
from penstock.errors import SettingError
from penstock.java import jars
from penstock.object_store.bucket import Bucket, parse_endpoint
from penstock.object_store.endpoint import AWS, Endpoint, find_endpoint

SCHEME, HADOOP_PREFIX = "s3a", "spark.hadoop.fs.s3a."
# Spark matches error texts by a pattern that takes a stack frame for each character, and these texts are long.
JAVA_OPTIONS = ("-Xss16m",)


def is_object_store(path: str) -> bool:
    """Whether a path is in an object store."""
    return urlparse(path).scheme == SCHEME


def endpoint_of(path: str) -> Endpoint:
    """How to reach the object store of a path; SettingError if no setting says so."""
    endpoint = find_endpoint()
    if endpoint is None:
        raise SettingError(
            "checkpoints are in an object store, and no setting says where it is",
            got=f"PENSTOCK_CHECKPOINTS={path}",
            hint="set PENSTOCK_S3_URL, PENSTOCK_S3_ACCESS_KEY and PENSTOCK_S3_SECRET_KEY, or start the one here: "
            "`penstock up`",
        )
    parse_endpoint(endpoint)
    return endpoint


def store_below(path: str) -> Bucket:
    """The objects below a path, by a client that needs no Spark."""
    url = urlparse(path)
    return Bucket(endpoint_of(path), url.netloc, url.path.strip("/"))


def s3a_jars() -> list[Path]:
    """The jars of the S3A client and of the checkpoint writer; downloaded and compiled where they are missing."""
    return [*jars.jars_of("s3a"), file_managers.jar_of(file_managers.CONDITIONAL)]


def spark_conf(path: str) -> dict[str, str]:
    """Spark settings to reach the object store of a path. They may hold secrets.

    Raises:
        SettingError: No setting says how to reach it.
        SinkError: Its address is not valid.
    """
    at = endpoint_of(path)
    options = {
        "endpoint.region": at.region,
        "create.conditional.enabled": "true",
        "audit.enabled": "false",
        # The default needs another library, which prefetches columns of large files.
        "input.stream.type": "classic",
        # Spark copies its snapshots of state there; the faster way needs another library, an HTTP client on Netty.
        "optimized.copy.from.local.enabled": "false",
        # Uploads are buffered among the JVM's temporary files.
        "buffer.dir": "${java.io.tmpdir}/s3a",
        # A stream that fails is started again: it must fail within seconds, not within minutes.
        "connection.establish.timeout": "15s",
        "connection.timeout": "20s",
        "attempts.maximum": "2",
        "retry.limit": "4",
    }
    if at.url != AWS:
        options |= {
            "endpoint": at.url,
            "path.style.access": "true",
            "connection.ssl.enabled": str(at.url.startswith("https:")).lower(),
        }
    if at.access_key:
        options |= {
            "access.key": at.access_key,
            "secret.key": at.secret_key,
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
    else:
        options["aws.credentials.provider"] = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    return {f"{HADOOP_PREFIX}{name}": value for name, value in options.items()}
