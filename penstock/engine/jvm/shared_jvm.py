"""A JVM with a Spark session that several processes use, one after the other. Tested with Spark 4.2.0."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def address(spark: SparkSession) -> tuple[int, str]:
    """The port of the gateway to a session's JVM, and the token that it asks for."""
    gateway: Any = spark.sparkContext._gateway
    return gateway.gateway_parameters.port, gateway.gateway_parameters.auth_token


def has_ended(spark: SparkSession) -> bool:
    """Whether the JVM that this process started has ended."""
    gateway: Any = spark.sparkContext._gateway
    return gateway.proc.poll() is not None


def connect(port: int, token: str) -> SparkSession:
    """The session of a JVM that another process has started; it must not be stopped.

    Raises:
        OSError: Nothing listens there.
    """
    from py4j.protocol import Py4JNetworkError
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=token)
    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        scala = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        context = gateway.jvm.JavaSparkContext.fromSparkContext(scala)
        return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf())))
    except Py4JNetworkError as e:
        raise ConnectionError(str(e)) from e
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def running_queries(spark: SparkSession) -> list[Any]:
    """The queries of all sessions of the JVM."""
    session: Any = spark
    return list(session._jsparkSession.sharedState().activeStreamingQueries().values())


def stop_queries(spark: SparkSession) -> None:
    """Stop the queries of all sessions of the JVM, if it still runs."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        for query in running_queries(spark):
            query.stop()
