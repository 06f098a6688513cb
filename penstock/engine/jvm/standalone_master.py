"""Starts, kills and looks up drivers of a standalone cluster, by the protocol of Spark's master.

`spark-submit --deploy-mode cluster` refuses Python, and the REST server of a master has no encryption; but a master
starts any command as a driver on one of its workers. `penstock.supervision.cluster_drivers` runs this module as
`python -m penstock.engine.jvm.standalone_master`. It reads a request as JSON, which may contain secrets, from standard
input, and prints the answer as JSON in its last line. Tested with Spark 4.2.0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import httpx

from penstock.engine.executor_wait import describe_free_resources
from penstock.engine.spark_security import security_conf
from penstock.java import jars, runtime
from penstock.settings import ExecutorResources

DEPLOY = "org.apache.spark.deploy"
MESSAGES = f"{DEPLOY}.DeployMessages$"
# A JVM of a few seconds. Netty and Spark's encryption reach into these packages.
JVM_OPTIONS = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx128m", "-Dlog4j2.level=ERROR",
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
)  # fmt: skip
# A master that hangs counts as unreachable.
RPC_TIMEOUTS = {
    "spark.rpc.askTimeout": "10s",
    "spark.rpc.lookupTimeout": "10s",
    "spark.network.timeout": "10s",
    "spark.network.auth.rpcTimeout": "10s",
    "spark.rpc.io.connectionTimeout": "10s",
    "spark.rpc.io.connectionCreationTimeout": "10s",
    "spark.rpc.numRetries": "1",
}
# A worker waits ten seconds for a driver to end before it kills it.
KILL_TIMEOUT_S = 20.0
# States of drivers that have ended; a lost worker's drivers have ERROR too.
ENDED_STATES = ("FINISHED", "FAILED", "KILLED", "ERROR")


class MasterClient:
    """Talks to the leading master of a cluster. OSError if there is none."""

    def __init__(self, jvm: Any, url: str) -> None:
        self._jvm = jvm
        conf = jvm.org.apache.spark.SparkConf(False)
        for key, value in (security_conf(url) | RPC_TIMEOUTS).items():
            conf.set(key, value)
        kind = jvm.org.apache.spark.SecurityManager
        manager = kind(conf, *(getattr(kind, f"$lessinit$greater$default${n}")() for n in (2, 3)))
        # A client, which listens on no port.
        self._env = jvm.org.apache.spark.rpc.RpcEnv.create("penstock", "127.0.0.1", 0, conf, manager, True)
        self._ref = self._leader(url)

    def _leader(self, url: str) -> Any:
        failures = []
        for address in url.removeprefix("spark://").split(","):
            parsed = urlparse(f"spark://{address}")
            try:
                rpc_address = self._jvm.org.apache.spark.rpc.RpcAddress.apply(parsed.hostname, parsed.port)
                self._ref = self._env.setupEndpointRef(rpc_address, "Master")
                status = str(self.state().status())
            except Exception as e:  # of the JVM: it is no leader
                failures.append(f"{address} does not answer ({_cause(e)})")
                continue
            if status == "ALIVE":
                return self._ref
            failures.append(f"{address} is {status.lower()}")
        raise OSError("; ".join(failures))

    def _ask(self, message: Any, answer: str) -> Any:
        tag = self._jvm.scala.reflect.ClassTag.apply(self._jvm.java.lang.Class.forName(f"{MESSAGES}{answer}"))
        return self._ref.askSync(message, tag)

    def _message(self, name: str, *arguments: Any) -> Any:
        return getattr(self._jvm, f"{MESSAGES}{name}")(*arguments)

    def _seq(self, words: Sequence[str]) -> Any:
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(list(words)).toSeq()

    def state(self) -> Any:
        """The master's state."""
        message = getattr(getattr(self._jvm, f"{MESSAGES}RequestMasterState$"), "MODULE$")
        return self._ask(message, "MasterStateResponse")

    def submit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Submit a driver, which starts when a worker has room for it; returns its id."""
        # The driver ends with its worker, which is its only owner.
        command_line = [
            "{{WORKER_URL}}",
            "{{USER_JAR}}",
            f"{DEPLOY}.PythonRunner",
            request["file"],
            "",
            *request["arguments"],
        ]
        env = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(request["environment"])
        command = getattr(self._jvm, f"{DEPLOY}.Command")(
            f"{DEPLOY}.worker.DriverWrapper",
            self._seq(command_line),
            env,
            self._seq(request["class_path"]),
            self._seq([]),
            # The options of spark-submit and executors, which Arrow needs.
            self._seq(
                [*self._jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray(), *request["options"]]
            ),
        )
        # The first argument is a file that the worker downloads; any file will do.
        driver = getattr(self._jvm, f"{DEPLOY}.DriverDescription")(
            Path(request["file"]).as_uri(), request["memory"], request["cores"], False, command, self._seq([])
        )
        response = self._ask(self._message("RequestSubmitDriver", driver), "SubmitDriverResponse")
        if not response.success():
            raise OSError(str(response.message()))
        return {"id": str(response.driverId().get())}

    def driver_status(self, name: str) -> dict[str, Any]:
        """The status of a driver.

        Returns:
            `state`: see `master.DriverState`; MISSING if the master does not know the driver.
            `why`: the error, if there is one.
            `free`: the free resources of workers, if no worker has room for the driver.
        """
        response = self._ask(self._message("RequestDriverStatus", name), "DriverStatusResponse")
        state, error = response.state(), response.exception()
        status = {
            "state": str(state.get()) if response.found() and state.isDefined() else "MISSING",
            "why": str(error.get().toString()) if error.isDefined() else "",
            "free": "",
        }
        if status["state"] == "SUBMITTED":
            status["free"] = self._free(name)
        return status

    def _free(self, name: str) -> str:
        """The free resources of workers, read from their web pages, because the master's state does not have them."""
        state = self.state()
        description = next((d.desc() for d in state.activeDrivers() if str(d.id()) == name), None)
        cores, memory = (int(description.cores()), int(description.mem())) if description else (1, 0)
        workers = []
        for worker in state.workers():
            if str(worker.state()) == "ALIVE":
                page = str(worker.webUiAddress())
                try:
                    workers.append(httpx.get(f"{page}/json/", timeout=5).json())
                except (httpx.HTTPError, ValueError):
                    return f"an unknown amount: the page {page} of a worker cannot be read"
        return describe_free_resources(
            workers, ExecutorResources(cores=cores, executor_cores=cores, memory=f"{memory}m" if memory else None)
        )

    def kill(self, name: str) -> dict[str, Any]:
        """Kill a driver, wait up to `KILL_TIMEOUT_S` until it has ended, and return its status."""
        self._ask(self._message("RequestKillDriver", name), "KillDriverResponse")
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while (status := self.driver_status(name))["state"] not in (
            *ENDED_STATES,
            "MISSING",
        ) and time.monotonic() < deadline:
            time.sleep(0.2)
        return status


def _cause(error: Exception) -> str:
    thrown = getattr(error, "java_exception", None)
    cause = thrown
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(error if cause is None else cause.toString()).splitlines()[0][:300]


@contextmanager
def _jvm() -> Iterator[Any]:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    folder = jars.pyspark_folder() / "jars"
    port, token = launch_gateway(
        jarpath=str(next(folder.glob("py4j-*.jar"))),
        classpath=str(folder / "*"),
        javaopts=[*JVM_OPTIONS],
        java_path=runtime.find().command,
        # The JVM ends with this process.
        die_on_exit=True,
        enable_auth=True,
        redirect_stderr=sys.stderr,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Handle a request.

    Args:
        request: `{"do": "submit" | "look" | "kill", "master": URL, ...}`, with the `id` of a driver, or the arguments
            of `submit`.

    Returns:
        The answer, or `{"error": text}`.
    """
    with _jvm() as jvm:
        try:
            master = MasterClient(jvm, request["master"])
            match request["do"]:
                case "submit":
                    return master.submit(request)
                case "kill":
                    return master.kill(request["id"])
                case _:
                    return master.driver_status(request["id"])
        except OSError as e:
            return {"error": str(e)}
        except Exception as e:  # of the JVM's
            return {"error": _cause(e)}


def main() -> None:
    answer = handle_request(json.load(sys.stdin))
    print(f"\n{json.dumps(answer)}", flush=True)
    # The JVM ends when its standard input does, and is not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
