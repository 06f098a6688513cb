"""A JVM with a Spark session that several processes use. Tested with Spark 4.2.0."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import HostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A setting of the sessions of a driver that shares the JVM with others: its incarnation.
DRIVER_CONF = "penstock.driver"
# Seconds until a JVM that was asked to end is killed.
END_TIMEOUT = 30.0


def end(spark: SparkSession) -> None:
    """End the JVM that this process started, and wait until it has."""
    gateway: Any = spark.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin:
        # It ends as its standard input is closed.
        process.stdin.close()
    try:
        process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        kill(spark)


def kill(spark: SparkSession) -> None:
    """Kill the JVM that this process started."""
    gateway: Any = spark.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    process.kill()
    process.wait()


def connect(port: int, token: str, worker_variables: Mapping[str, str]) -> SparkSession:
    """The session of a JVM that another process has started; it must not be stopped.

    Args:
        port: The port of its gateway.
        token: What the gateway asks for.
        worker_variables: Environment variables of the Python workers. Workers are forked from a process for each set
            of variables.

    Raises:
        OSError: Nothing listens there, or something else.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=token)
    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        scala = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        java_context = gateway.jvm.JavaSparkContext.fromSparkContext(scala)
        conf = SparkConf(_jconf=java_context.getConf())
        context = SparkContext(gateway=gateway, jsc=java_context, conf=conf, environment=dict(worker_variables))
        return SparkSession(context)
    except Py4JError as e:
        # A session of this process's own would use the same gateway.
        SparkContext._gateway = SparkContext._jvm = None
        raise ConnectionError(str(e)) from e
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


@contextmanager
def clear_end(log: str) -> Iterator[None]:
    """Tell that the JVM has ended within the block: HostError. log: the file that it writes to."""
    from py4j.protocol import Py4JNetworkError

    try:
        yield
    except (Py4JNetworkError, ConnectionRefusedError) as e:
        raise HostError(
            "the Spark session that the platform keeps has ended during the command",
            got=e,
            hint="run it again, at once: it then starts a session of its own, with PENSTOCK_DRIVER_MEMORY; "
            f"the reason is in {log}",
        ) from e


def running_queries(spark: SparkSession) -> list[Any]:
    """The queries of all sessions of the JVM."""
    session: Any = spark
    return list(session._jsparkSession.sharedState().activeStreamingQueries().values())


@dataclass(frozen=True)
class Gateway:
    """A gateway to the JVM for another process, whose functions Spark calls for the queries that it starts.

    Attributes:
        port: Its port on the loopback address.
        token: What it asks for.
    """

    port: int
    token: str
    _server: Any

    @classmethod
    def open(cls, spark: SparkSession) -> Gateway:
        jvm: Any = spark._jvm
        server = jvm.org.apache.spark.api.python.Py4JServer(jvm.org.apache.spark.SparkEnv.get().conf())
        server.start()
        return cls(server.getListeningPort(), server.secret(), server)

    def close(self) -> None:
        """Close it, and forget the objects that the process had."""
        _try(self._server.shutdown)


def stop_queries(spark: SparkSession, driver: str) -> list[str]:
    """Stop the queries of one driver, by its incarnation, if the JVM still runs; their names."""
    queries: list[Any] = []
    _try(lambda: queries.extend(running_queries(spark)))
    stopped: list[str] = []
    for query in queries:
        _try(lambda query=query: _stop_if_of(query, driver, stopped))  # type: ignore[misc]
    return stopped


def _stop_if_of(query: Any, driver: str, stopped: list[str]) -> None:
    conf = query.sparkSession().conf()
    if conf.get(DRIVER_CONF, "") == driver:
        # Other drivers wait for this.
        conf.set("spark.sql.streaming.stopTimeout", f"{END_TIMEOUT:g}s")
        query.stop()
        stopped.append(str(query.name()))


def _try(action: Callable[[], object]) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        action()
