"""The Spark session of a driver: what every query needs, with the reason for each setting."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.checkpoint import file_managers, s3a
from penstock.engine.executor_code import EXECUTOR_FOLDER
from penstock.engine.jvm import java_classes
from penstock.engine.jvm.polling_delay import SHORTEST_MS
from penstock.engine.jvm.shared_jvm import DRIVER_CONF
from penstock.engine.spark_security import security_conf
from penstock.errors import SettingError
from penstock.host import scratch
from penstock.java import aot_cache, jars, runtime, spark_package
from penstock.settings import ExecutorResources, executors_here, settings
from penstock.supervision import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.stream import Stream


# The JVM returns memory when idle, and a serial collector needs no threads of its own on 2 cores.
JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:NewRatio=1",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    "-Dlog4j2.formatMsgNoLookups=true",
)
LOG4J_CONFIG = Path(__file__).with_name("log4j2.properties")
# Python takes a time without a zone for one of the process's zone: all processes of a stream have the same.
UTC_CONF = {"spark.sql.session.timeZone": "UTC", "spark.executorEnv.TZ": "UTC"}
# For queries of few rows that are run once: to generate and compile code takes longer than to interpret expressions.
INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN"}
CHECKPOINT_WRITER = "spark.sql.streaming.checkpointFileManagerClass"


def memory_bytes(memory: str) -> int:
    """Bytes of a size as Spark takes it, in MiB without a unit. Spark itself reports a wrong one."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    return int(match[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[match[2]] if match else 1 << 31


def submit_conf(app: str, master: str | None = None, java_options: Sequence[str] | None = None) -> dict[str, str]:
    """Spark settings of one app's driver, as spark-submit takes them.

    Args:
        app: name of the app.
        master: URL of the master; None for that of the settings.
        java_options: further options of the JVM, instead of those for its AOT cache.
    """
    public, secret = _submit_conf(app, master, java_options)
    return public | secret


def _submit_conf(
    app: str, master: str | None, java_options: Sequence[str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The settings that every user may read, and those that may be secrets."""
    s = settings()
    if other := [f"{name}={zone}" for name, zone in s.spark_conf.items() if UTC_CONF.get(name, zone) != zone]:
        raise SettingError(
            "PENSTOCK_SPARK_CONF asks for another zone than UTC",
            got=", ".join(other),
            hint="leave it out; where a transform needs local time: from_utc_timestamp(event_time, 'Asia/Tokyo')",
        )
    master = master or s.spark_master
    chosen = shlex.split(s.java_options) or JAVA_OPTIONS
    options = [
        *chosen,
        f"-Dlog4j2.configurationFile={LOG4J_CONFIG}",
        # A JVM that was out of memory has lost some threads, and looks healthy. The next driver learns the reason.
        "-XX:+ExitOnOutOfMemoryError",
        *(s3a.JAVA_OPTIONS if s3a.is_object_store(s.checkpoint_root) else ()),
        *(aot_cache.options() if java_options is None else java_options),
    ]
    connector = [str(path) for path in jars.jars_of("connector")]
    conf = {
        "spark.app.name": f"penstock-{app}",
        "spark.master": master,
        "spark.driver.memory": s.driver_memory,
        # A batch's rows are copied twice on their way to Python: rows that do not fit fail their batch, not the driver.
        "spark.driver.maxResultSize": f"{memory_bytes(s.driver_memory) // 2}b",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": shlex.join(options),
        **UTC_CONF,
        # `${name}` in a text is no variable.
        "spark.sql.variable.substitute": "false",
        # A long batch of one stream must not starve the others of the app; see also `jvm.bridge.fair_turn`.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state"
        ".RocksDBStateStoreProvider",
        # A commit writes the batch's changes, not a snapshot of the whole store.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Plans of micro-batches are small and repeat: adapting them costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        # Generated code is compiled once: a few streams have more classes than the default cache of 100, and would
        # compile all of them again for each batch.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # For the line of code of each expression, PySpark asks the JVM four times and both walk their stacks: a third
        # of the time in which a query is planned. Errors are told by their first line, which has no line of code.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # Groups in a task beyond which aggregates of objects sort instead of hash; the default is 128.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "5000",
        # How often a query polls the broker that finds no records; the default of 10 ms takes a fifth of a core per
        # query. `PollingDelay` makes it longer while no records come.
        "spark.sql.streaming.pollingDelay": f"{SHORTEST_MS}ms",
        "spark.sql.streaming.minBatchesToRetain": "20",
        # Hadoop sets the modes of checkpoint files itself, whatever the process's umask.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.python.worker.reuse": "true",
        # Workers are forked from a process that has loaded their libraries.
        "spark.python.daemon.module": "penstock.engine.worker_daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    }
    # Java's class loader takes these classes from its cache; those of spark.jars it cannot, and Spark copies them.
    conf["spark.driver.extraClassPath"] = os.pathsep.join(connector)
    if executors_here(master):
        # Nothing outside this machine needs to reach the driver.
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if not master.startswith("local"):
        conf |= _of_executors(app, master, chosen, connector)
    hidden: dict[str, str] = {}
    if s.checkpoint_folder:
        # Spark's own managers run three processes per file on a local disk. This one guards less against two writers
        # than Spark's default, which the lease and the fenced producer do here.
        conf[CHECKPOINT_WRITER], more = file_managers.LOCAL, [file_managers.jar_of(file_managers.LOCAL)]
    elif s3a.is_object_store(s.checkpoint_root):
        conf[CHECKPOINT_WRITER], more = file_managers.CONDITIONAL, s3a.s3a_jars()
        hidden = s3a.spark_conf(s.checkpoint_root)
    else:
        more = []
    more = [*more, *java_classes.jars()]
    # At the end of the class path: the JVM's cache is valid for the path before.
    if fetched := [*filter(None, [conf.get("spark.jars")]), *map(str, more)]:
        conf["spark.jars"] = ",".join(fetched)
    hidden |= security_conf(master) | s.spark_conf
    return {key: value for key, value in conf.items() if key not in hidden}, hidden


def _of_executors(app: str, master: str, options: Sequence[str], connector: Sequence[str]) -> dict[str, str]:
    """The resources that an app requests of a cluster, and what its executors need."""
    s = settings()
    request = s.executor_resources(app)
    conf = {
        # A standalone master gives all free cores to an app that does not limit them.
        "spark.cores.max": str(request.cores),
        "spark.executor.cores": str(request.executor_cores),
        "spark.executor.memory": str(request.memory),
        "spark.executor.extraJavaOptions": shlex.join(options),
        # Their Python has the code of the driver's release, if it has one, and then the driver's path.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([EXECUTOR_FOLDER, *s.import_paths]),
        # A lost executor is noticed by its closed connection; these are for an executor or host that hangs. By default
        # Spark checks every minute whether one was silent for two.
        "spark.network.timeout": "60s",
        "spark.executor.heartbeatInterval": "3s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "15s",
        "spark.network.timeoutInterval": "2s",
        # After this a reader of shuffled rows asks the driver whether an executor that hangs is still there.
        "spark.shuffle.io.connectionTimeout": "15s",
        "spark.shuffle.io.retryWait": "1s",
        # Executors on one host would read each other's files. A restarted master assigns the same ids again, and the
        # files of the first executors would be searched for in vain.
        "spark.shuffle.readHostLocalDisk": "false",
    }
    if executors_here(master):
        conf["spark.executor.extraClassPath"] = os.pathsep.join(connector)
        # They have the driver's class path, and so its cache.
        local_options = [f"-Dlog4j2.configurationFile={LOG4J_CONFIG}", *aot_cache.options()]
        conf["spark.executor.extraJavaOptions"] = shlex.join([*options, *local_options])
        conf["spark.executorEnv.SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        # Executors fetch the jars from the driver.
        conf["spark.jars"] = ",".join(connector)
        if s.driver_host:
            conf["spark.driver.host"] = s.driver_host
    if master.startswith("k8s://"):
        conf |= _of_pods(request)
    return conf


def _of_pods(request: ExecutorResources) -> dict[str, str]:
    """Settings of executors that are pods in Kubernetes. SettingError without an image for them."""
    s = settings()
    if not s.executor_image:
        hint = "name the image that holds Java, the environment and jobs/, as docker/Dockerfile makes it"
        raise SettingError("executors in Kubernetes need PENSTOCK_EXECUTOR_IMAGE", got="none", hint=hint)
    conf = {
        # Kubernetes hands out executors, and knows no `spark.cores.max`.
        "spark.executor.instances": str((request.cores or 1) // (request.executor_cores or 1)),
        "spark.kubernetes.namespace": s.kubernetes_namespace,
        "spark.kubernetes.container.image": s.executor_image,
        # Beside the heap lie Python and its workers, which take more than a tenth of so small a heap.
        "spark.executor.memoryOverhead": "512m",
    }
    if s.executor_template:
        conf["spark.kubernetes.executor.podTemplateFile"] = s.executor_template
    return conf


def use_utc() -> None:
    """Make the local time of this process UTC, as in Spark and in its Python workers."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    # Py4J logs each callback, two a batch, and each connection that it closes.
    logging.getLogger("py4j").setLevel(logging.WARNING)


def open_session(
    app: str,
    java_options: Sequence[str] | None = None,
    log_level: str = "warn",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process. Under spark-submit, and in a cluster, the JVM exists; otherwise it is started.

    The process's local time is UTC from then on, as in Spark and in its Python workers.

    Args:
        app: Name of the app.
        java_options: As for `submit_conf`.
        log_level: Of what Spark writes to standard error: `warn`, or `fatal` where the caller tells errors itself.
        conf: Settings over those of `submit_conf`.

    Raises:
        HostError: The installed parts of Spark have different versions.
    """
    from pyspark.sql import SparkSession

    use_utc()
    Path(settings().logs).mkdir(parents=True, exist_ok=True)
    builder, temporary, file = SparkSession.builder, None, None
    # The settings of spark-submit, above all the master, are not overridden here.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # spark-submit brings the Python files of its jars.
        spark_package.check()
        if executors_here(settings().spark_master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", settings().worker_python)
        os.environ.update(runtime.find().environment())
        # Otherwise a killed JVM leaves some 20 MB for ever, and more if it shuffled.
        temporary = scratch.process_folder(settings().home / "tmp")
        options = [
            *(aot_cache.options() if java_options is None else java_options),
            f"-Djava.io.tmpdir={temporary}",
            f"-Dpenstock.log.level={log_level}",
        ]
        # The builder passes settings on the JVM's command line, which every user may read.
        public, hidden = _submit_conf(app, None, options)
        if hidden:
            file = launch.write_spark_conf(f"{app}-{os.getpid()}", hidden)
            os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(["--properties-file", str(file), "pyspark-shell"])
        for key, value in (public | dict(conf or {})).items():
            builder = builder.config(key, value)
        os.environ.setdefault("SPARK_LOCAL_DIRS", str(temporary))
    elif settings().deploy == "cluster":
        # The JVM that a worker started has no settings yet: its command line holds no secret.
        for key, value in submit_conf(app).items():
            builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    finally:
        if file is not None:
            file.unlink()
            del os.environ["PYSPARK_SUBMIT_ARGS"]
    if os.environ.get("SPARK_LOCAL_DIRS") == str(temporary):
        del os.environ["SPARK_LOCAL_DIRS"]  # child processes have their own
    spark.sparkContext.setLogLevel(log_level.upper())
    return spark


def session_for(spark: SparkSession, stream: Stream) -> SparkSession:
    """A session for one stream: its checkpoint pins the partition count, independent of other streams."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", stream.shuffle_partitions)
    if driver := spark.conf.get(DRIVER_CONF, ""):
        session.conf.set(DRIVER_CONF, driver)
    # A batch without data closes windows. Updates close none: their old state is dropped with the next data.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", stream.output_mode.spark_mode == "append")
    # Prune branches whose filter is always false: Spark keeps them because they may have state or a watermark.
    can_prune = stream.stateful_steps == 0 and any(input_.splits_tombstones for input_ in stream.sources.values())
    session.conf.set("spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan", can_prune)
    return session
